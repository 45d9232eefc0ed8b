// Formats the output of dsat estimate.
#include "cli/estimate_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/table.h"

namespace dsat::cli {
namespace {

using engine::Prediction;
using engine::StepTime;

std::vector<std::string> MemoryRow(const std::string& tier, const TierNeed& need) {
  return {tier, BytesOrDash(need.state_bytes), BytesOrDash(need.peak_bytes),
          BytesOrDash(need.limit_bytes), need.fits() ? "fits" : "does not fit"};
}

// The rank that needs most device memory.
const Prediction& Largest(const PlannerEstimate& estimate) {
  return *std::ranges::max_element(estimate.ranks, {}, &Prediction::run_peak_bytes);
}

std::string TrafficText(const Prediction& rank) {
  return fmt::format(
      "in a step, per rank\n"
      "  collectives: {}, messages: {}, sent: {}\n"
      "  device to host: {}, host to device: {}\n"
      "  disk read: {}, written: {}\n"
      "  FLOPs: {:.4g} (forward: {:.4g}, recomputation: {:.4g})\n"
      "  activations of one sample: {}\n",
      rank.step_traffic.num_collectives, rank.step_traffic.num_messages,
      HumanBytes(rank.step_traffic.sent_bytes), HumanBytes(rank.tier_traffic.to_host_bytes),
      HumanBytes(rank.tier_traffic.to_device_bytes), HumanBytes(rank.disk_traffic.read_bytes),
      HumanBytes(rank.disk_traffic.written_bytes), static_cast<double>(rank.step_flops),
      static_cast<double>(rank.forward_flops),
      static_cast<double>(rank.computed_flops - rank.step_flops),
      HumanBytes(rank.activation_bytes_per_sample));
}

std::string TimeText(const PlannerEstimate& estimate) {
  const StepTime& time = estimate.time;
  if (time.total_ms() <= 0) return "";
  std::string text = fmt::format("time of a step: {:.4g} ms, {:.4g} samples/s (an estimate)\n",
                                 time.total_ms(), estimate.samples_per_s);
  const auto part = [&](const char* what, double ms, const std::string& more = "") {
    if (ms <= 0 && more.empty()) return;
    text += fmt::format("  {:<24} {:>10.4g} ms {:>4.0f} %{}\n", what, ms,
                        100 * ms / time.total_ms(), more);
  };
  const auto hidden = [](double busy_ms, double waited_ms) {
    const double ms = busy_ms - waited_ms;
    return ms > busy_ms / 1000 ? fmt::format("  and {:.4g} ms hidden by computing", ms) : "";
  };
  part("forward and backward", time.compute_ms);
  part("optimizer", time.update_ms);
  part("device <-> host", time.copy_ms);
  part("waiting for ranks", time.communication_ms,
       hidden(time.link_busy_ms, time.communication_ms));
  part("waiting for the disk", time.disk_ms, hidden(time.disk_busy_ms, time.disk_ms));
  part("pipeline bubble", time.bubble_ms);
  return text;
}

std::string Verdict(const PlannerEstimate& estimate) {
  if (!estimate.fits()) return estimate.Misfit() + ".\n";
  return estimate.device.limit_bytes > 0
             ? fmt::format("It fits and leaves {} free on each device.\n",
                           HumanBytes(estimate.device.limit_bytes - estimate.device.peak_bytes))
             : "It fits: the devices have no limit.\n";
}

std::vector<std::string> VariantRow(const Variant& variant) {
  if (!variant.estimate) return {variant.name, "", "", "", "", "refused", "", ""};
  const PlannerEstimate& e = *variant.estimate;
  return {variant.name,
          HumanBytes(e.device.state_bytes),
          HumanBytes(e.device.peak_bytes),
          BytesOrDash(e.host.peak_bytes),
          BytesOrDash(e.disk.peak_bytes),
          e.fits() ? "yes" : "no",
          std::to_string(variant.largest_micro_batch),
          fmt::format("{:.4g}", e.time.total_ms())};
}

Json ToJson(const TierNeed& need) {
  return {{"state_bytes", need.state_bytes},
          {"peak_bytes", need.peak_bytes},
          {"limit_bytes", need.limit_bytes},
          {"fits", need.fits()}};
}

Json ToJson(const StepTime& time) {
  return {{"total_ms", time.total_ms()},
          {"compute_ms", time.compute_ms},
          {"update_ms", time.update_ms},
          {"copy_ms", time.copy_ms},
          {"communication_ms", time.communication_ms},
          {"disk_ms", time.disk_ms},
          {"bubble_ms", time.bubble_ms},
          {"link_busy_ms", time.link_busy_ms},
          {"disk_busy_ms", time.disk_busy_ms}};
}

Json ToJson(const Prediction& rank) {
  return {{"device_state_bytes", rank.state_bytes},
          {"device_peak_bytes", rank.run_peak_bytes},
          {"host_state_bytes", rank.host_state_bytes},
          {"host_peak_bytes", rank.run_host_peak_bytes},
          {"disk_bytes", rank.disk_bytes},
          {"activation_bytes_per_sample", rank.activation_bytes_per_sample},
          {"collectives", rank.step_traffic.num_collectives},
          {"messages", rank.step_traffic.num_messages},
          {"sent_bytes", rank.step_traffic.sent_bytes},
          {"to_host_bytes", rank.tier_traffic.to_host_bytes},
          {"to_device_bytes", rank.tier_traffic.to_device_bytes},
          {"disk_read_bytes", rank.disk_traffic.read_bytes},
          {"disk_written_bytes", rank.disk_traffic.written_bytes},
          {"flops", rank.step_flops},
          {"forward_flops", rank.forward_flops},
          {"computed_flops", rank.computed_flops}};
}

}  // namespace

std::string BytesOrDash(int64_t bytes) {
  return bytes > 0 ? HumanBytes(bytes) : "-";
}

std::string HeadText(const Planner& planner) {
  const engine::Cluster& cluster = planner.cluster();
  return fmt::format("{}, T {}\n{} of {} on {}\n\n", planner.model().description, planner.seq_len(),
                     Counted(cluster.num_ranks, "rank"), cluster.device,
                     Counted(cluster.num_nodes(), "node"));
}

std::string EstimateText(const Planner& planner, const std::string& name,
                         const PlannerEstimate& estimate) {
  const engine::BatchSizes& batch = estimate.batch;
  std::string text = fmt::format(
      "{}: {} in a step: micro-batch {}, accumulation {}, {}{}\n\n", Printable(name),
      Counted(batch.train_batch_size, "sample"), batch.micro_batch_size, batch.accumulation_steps,
      Counted(planner.cluster().num_ranks / estimate.num_stages, "data-parallel rank"),
      estimate.num_stages == 1 ? "" : fmt::format(", {} pipeline stages", estimate.num_stages));
  text += FormatTable(
      {"memory", "between steps", "peak", "available", ""},
      {MemoryRow("device, per rank", estimate.device), MemoryRow("host, per node", estimate.host),
       MemoryRow("disk, per node", estimate.disk)});
  text += "\n" + TrafficText(Largest(estimate));
  const std::string time = TimeText(estimate);
  if (!time.empty()) text += "\n" + time;
  return text + "\n" + Verdict(estimate);
}

std::string ChangesText(const std::vector<Change>& changes) {
  if (changes.empty())
    return "No micro-batch size, stage, offload, checkpointing or number of ranks makes it fit.\n";
  std::string text = "It would fit with any one of\n";
  for (const Change& change : changes) {
    text += fmt::format("  {}: {} of a device, {} of a node's host memory\n", change.what,
                        HumanBytes(change.estimate.device.peak_bytes),
                        HumanBytes(change.estimate.host.peak_bytes));
  }
  return text;
}

std::string VariantsText(const std::vector<Variant>& variants) {
  std::vector<std::vector<std::string>> rows;
  std::string refused;
  for (const Variant& variant : variants) {
    rows.push_back(VariantRow(variant));
    if (!variant.refused.empty())
      refused += fmt::format("{}: {}\n", variant.name, Printable(variant.refused));
  }
  return FormatTable({"settings", "device, state", "device, peak", "host per node", "disk per node",
                      "fits", "largest micro-batch", "step ms"},
                     rows) +
         refused;
}

Json ToJson(const PlannerEstimate& estimate) {
  Json json{{"train_batch_size", estimate.batch.train_batch_size},
            {"micro_batch_size", estimate.batch.micro_batch_size},
            {"accumulation_steps", estimate.batch.accumulation_steps},
            {"pipeline_stages", estimate.num_stages},
            {"device", ToJson(estimate.device)},
            {"host", ToJson(estimate.host)},
            {"disk", ToJson(estimate.disk)},
            {"fits", estimate.fits()},
            {"time", ToJson(estimate.time)},
            {"samples_per_s", estimate.samples_per_s},
            {"ranks", Json::array()}};
  for (const Prediction& rank : estimate.ranks)
    json["ranks"].push_back(ToJson(rank));
  return json;
}

Json ToJson(const std::vector<Variant>& variants) {
  Json rows = Json::array();
  for (const Variant& variant : variants) {
    Json row{{"settings", variant.name}};
    if (variant.estimate) {
      row["estimate"] = ToJson(*variant.estimate);
      row["largest_micro_batch"] = variant.largest_micro_batch;
    } else {
      row["refused"] = variant.refused;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace dsat::cli
