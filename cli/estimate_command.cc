// dsat estimate: predicts memory, traffic and time of a configuration on a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/num_cores.h"
#include "base/table.h"
#include "cli/commands.h"
#include "cli/read_spec.h"
#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "engine/config/strategies.h"
#include "profiler/planner.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/import_hook.h"
#include "searcher/scripts/device_memory.h"

namespace dsat::cli {
namespace {

using engine::Cluster;
using engine::Prediction;
using engine::StepTime;

// "-" if there are none.
std::string BytesOrDash(int64_t bytes) {
  return bytes > 0 ? HumanBytes(bytes) : "-";
}

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

std::string FitText(const PlannerEstimate& estimate) {
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

// The model and the cluster, for one line above the rest.
std::string HeadText(const Planner& planner) {
  const engine::Cluster& cluster = planner.cluster();
  return fmt::format("{}, T {}\n{} of {} on {}\n\n", planner.model().description, planner.seq_len(),
                     Counted(cluster.num_ranks, "rank"), cluster.device,
                     Counted(cluster.num_nodes(), "node"));
}

// One configuration. `name` is what the user calls it.
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
  return text + "\n" + FitText(estimate);
}

// The changes with which a configuration fits.
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

// A row for each variant.
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

// The subject of an estimate, from the experiment file and the flags over it.
struct Subject {
  PlannerInputs inputs;
  Json ds_config;
  std::string name;
  Cluster cluster;
};

Json ModelOf(const EstimateFlags& flags) {
  if (flags.model.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "no model; expected an experiment file of entrypoint builtin, or --model");
  }
  if (flags.model.front() == '{') return ParseTolerantJson(flags.model, "--model");
  return {{"type", "gpt2"}, {"preset", flags.model}};
}

void UseExperiment(const EstimateFlags& flags, Subject& subject) {
  const ExperimentSpec spec = ReadSpec(flags.config, flags.model_dir);
  if (flags.device.empty() && spec.device == "cuda")
    subject.cluster = engine::ClusterOf(engine::kDefaultGpu);
  subject.inputs = PlannerInputsOf(spec);
  subject.ds_config = spec.ds_config;
  subject.name = spec.ds_config_path.empty() ? spec.config_path : spec.ds_config_path;
  subject.cluster.num_ranks = spec.slots_per_trial;
  // A trial runs on one machine.
  subject.cluster.ranks_per_node = std::max(subject.cluster.ranks_per_node, spec.slots_per_trial);
  subject.cluster.rank_host_memory_bytes = spec.host_memory_bytes;
  // As the trials share this machine.
  if (flags.device.empty() && spec.device != "cuda")
    subject.cluster.num_threads =
        static_cast<int>(std::max<int64_t>(1, NumCores() / spec.slots_per_trial));
  if (spec.device_memory_bytes > 0) subject.cluster.device_memory_bytes = spec.device_memory_bytes;
}

void ApplyFlags(const EstimateFlags& flags, Cluster& cluster) {
  if (flags.ranks) cluster.num_ranks = *flags.ranks;
  constexpr int64_t kMostRanks = 1'000'000;
  if (cluster.num_ranks > kMostRanks) {
    Throw(ErrorCode::kInvalidArgument, "--ranks: {}; expected at most {}", cluster.num_ranks,
          kMostRanks);
  }
  SetSize(flags.device_memory, "--device-memory", cluster.device_memory_bytes);
}

// With another number of ranks than `own_ranks` or another micro-batch size the accumulation
// follows or, where that cannot be, the total.
void ApplySettings(const EstimateFlags& flags, int64_t own_ranks, Subject& subject) {
  Json& ds_config = subject.ds_config;
  for (const std::string& setting : flags.settings)
    ApplySetting(setting, ds_config);
  constexpr const char* kMicroBatch = "train_micro_batch_size_per_gpu";
  const bool other_ranks = own_ranks != subject.cluster.num_ranks;
  if (other_ranks && own_ranks > 0 && !ds_config.contains(kMicroBatch)) {
    ds_config[kMicroBatch] =
        engine::ResolveBatchSizes(ds_config, subject.name, own_ranks).micro_batch_size;
  }
  if (flags.micro_batch) ds_config[kMicroBatch] = *flags.micro_batch;
  if (!flags.micro_batch && !flags.ranks) return;
  const bool is_set = std::ranges::any_of(flags.settings, [](const std::string& setting) {
    return setting.starts_with("/train_batch_size=");
  });
  try {
    engine::ResolveBatchSizes(ds_config, subject.name, subject.cluster.num_ranks);
  } catch (const Error&) {
    if (is_set || !ds_config.contains(kMicroBatch)) throw;
    ds_config.erase("train_batch_size");
  }
}

Subject SubjectOf(const EstimateFlags& flags) {
  Subject subject;
  const std::string fallback = flags.config.empty() ? engine::kDefaultGpu : "cpu";
  subject.cluster = ClusterFor(flags.device.empty() ? fallback : flags.device);
  if (!flags.config.empty()) UseExperiment(flags, subject);
  if (!flags.model.empty() || subject.inputs.model.empty()) {
    subject.inputs.model = ModelOf(flags);
    subject.inputs.model_what = "--model";
    subject.inputs.base_dir.clear();
    subject.inputs.data = nullptr;
  }
  if (!flags.ds_config.empty() || flags.config.empty()) {
    subject.name = flags.ds_config.empty() ? "stage_2" : flags.ds_config;
    subject.ds_config = engine::ReadDsConfig(subject.name);
  }
  subject.inputs.seq_len = flags.seq_len;
  subject.inputs.ds_config_source = subject.name;
  const int64_t own_ranks = flags.config.empty() ? 0 : subject.cluster.num_ranks;
  ApplyFlags(flags, subject.cluster);
  ApplySettings(flags, own_ranks, subject);
  return subject;
}

void PrintJson(const Planner& planner, const PlannerEstimate& estimate,
               const std::vector<Change>& changes, const std::vector<Variant>& variants) {
  Json json{
      {"model", planner.model().description},   {"parameters", engine::NumParams(planner.model())},
      {"seq_len", planner.seq_len()},           {"ranks_in_all", planner.cluster().num_ranks},
      {"nodes", planner.cluster().num_nodes()}, {"device_name", planner.cluster().device},
      {"estimate", ToJson(estimate)},           {"changes_that_fit", Json::array()}};
  for (const Change& change : changes)
    json["changes_that_fit"].push_back(
        {{"what", change.what}, {"estimate", ToJson(change.estimate)}});
  if (!variants.empty()) json["variants"] = ToJson(variants);
  fmt::print("{}\n", json.dump(2));
}

// Sets the number of ranks and the memory of a device as the flags say.
void ApplyDevices(const EstimateFlags& flags, Json& request) {
  const std::optional<int64_t> here = NvidiaMemoryBytes();
  if (flags.device.empty() && flags.model.empty()) {
    request["on_gpu"] = here || !flags.device_memory.empty();
  } else {
    const Cluster cluster = ClusterFor(flags.device.empty() ? engine::kDefaultGpu : flags.device);
    request["memory"] = cluster.device_memory_bytes;
    request["on_gpu"] = cluster.kind() != engine::DeviceKind::kCpu;
  }
  if (flags.ranks) request["ranks"] = *flags.ranks;
  if (!flags.device_memory.empty())
    request["memory"] = ParseBytes(flags.device_memory, "--device-memory");
  if (request["memory"] == 0) request["memory"] = here.value_or(0);
}

void ApplyConfig(const EstimateFlags& flags, Json& ds_config) {
  if (!flags.ds_config.empty()) ds_config = engine::ReadDsConfig(flags.ds_config);
  for (const std::string& setting : flags.settings)
    ApplySetting(setting, ds_config);
  if (!flags.micro_batch) return;
  ds_config["train_micro_batch_size_per_gpu"] = *flags.micro_batch;
  ds_config.erase("train_batch_size");
}

std::vector<std::string> RowOf(const Json& row, bool has_limit) {
  std::vector<std::string> cells = {row.at("settings")};
  if (row.contains("refused")) return cells;
  for (const char* kind :
       {"parameters", "gradients", "optimizer", "buffers", "activations", "temporaries"})
    cells.push_back(BytesOrDash(row.at("kinds").at(kind)));
  cells.push_back(HumanBytes(row.at("peak_bytes")));
  cells.push_back(BytesOrDash(row.at("host_bytes")));
  if (!has_limit) return cells;
  cells.emplace_back(row.at("fits") ? "yes" : "no");
  cells.push_back(row.contains("largest_micro_batch") ? row["largest_micro_batch"].dump() : "?");
  return cells;
}

std::string TextOf(const Json& answer) {
  const int64_t ranks = answer.at("ranks"), limit = answer.at("memory_bytes");
  const int64_t micro_batch = answer.at("micro_batch_size");
  std::string text = fmt::format(
      "{} parameters, {} of them trained, {:.4g} FLOPs per {}\n"
      "{} of {}, micro-batch {}, accumulation {}{}\n\n",
      answer.at("num_params").get<int64_t>(), answer.at("trainable_num_params").get<int64_t>(),
      answer.at("flops_per_sample").get<double>(), micro_batch > 0 ? "sample" : "micro-batch",
      Counted(ranks, "rank"), answer.at("on_gpu") ? "a GPU" : "the CPU",
      micro_batch > 0 ? std::to_string(micro_batch) : "of the script's own",
      answer.at("accumulation_steps").get<int64_t>(),
      answer.at("stage").is_null() ? ", without DeepSpeed"
                                   : fmt::format(", ZeRO stage {}", answer.at("stage").dump()));
  std::vector<std::string> columns = {"settings",  "parameters", "gradients",
                                      "optimizer", "buffers",    "activations",
                                      "temporary", "peak",       "host"};
  if (limit > 0) columns.insert(columns.end(), {"fits", "largest batch"});
  std::vector<std::vector<std::string>> rows;
  std::string notes;
  for (const Json& row : answer.at("rows")) {
    rows.push_back(RowOf(row, limit > 0));
    rows.back().resize(columns.size());
    if (row.contains("refused"))
      notes += fmt::format("{}: {}\n", row["settings"].get<std::string>(),
                           Printable(row["refused"].get<std::string>()));
  }
  text += FormatTable(columns, rows) + notes;
  text +=
      "Bytes of each rank's tensors at the peak of two steps; a GPU's context and the rounding of "
      "its\nallocator come on top.\n";
  for (const Json& note : answer.at("notes"))
    text += note.get<std::string>() + "\n";
  if (limit == 0) return text;
  const Json& first = answer["rows"][0];
  text += fmt::format("\nIt {} {} of device memory", first.at("fits") ? "fits" : "does not fit",
                      HumanBytes(limit));
  if (answer.contains("fewest_ranks"))
    text += fmt::format("; the fewest ranks that hold it: {}", answer["fewest_ranks"].dump());
  return text + ".\n";
}

// The request to DryRun (searcher/command/import_hook.h) if the flags name a command, an experiment
// file that has one, or a config.json of Hugging Face; nullopt for the built-in engine. Throws
// kInvalidArgument for flags that mean nothing for a script, and for a command that only a shell
// can run.
std::optional<Json> ScriptOf(const EstimateFlags& flags) {
  Json request{{"environment", Json::object()},
               {"ds_config", Json::object()},
               {"folder", std::filesystem::current_path()},
               {"ranks", 0},
               {"memory", 0},
               {"all_stages", !flags.stages.empty()}};
  const bool is_model = flags.command.empty() && flags.model.ends_with(".json");
  if (is_model) {
    ReadJsonFile(flags.model);  // Throws before Python starts if the file cannot be read.
    request["command"] = Json::array({"python3", "-m", "dsat._of_config", flags.model,
                                      std::to_string(flags.seq_len), kConfigPlaceholder});
    request["ds_config"] = engine::ReadDsConfig("stage_2");
  } else if (flags.command.empty()) {
    if (flags.config.empty() || !flags.model.empty()) return std::nullopt;
    const ExperimentSpec spec = ReadSpec(flags.config, flags.model_dir);
    if (IsBuiltin(spec)) return std::nullopt;
    request.update(DryRunRequest(spec, spec.ds_config));
  } else {
    request["command"] = flags.command;
  }
  if (!flags.config.empty() && (is_model || !flags.command.empty())) {
    Throw(ErrorCode::kInvalidArgument, "\"{}\" and {}: expected one of them", flags.config,
          is_model ? "--model " + flags.model : "a command behind --");
  }
  if (!is_model && (flags.seq_len > 0 || !flags.model.empty())) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: is not for a script, whose model and data are its own; leave it out",
          flags.model.empty() ? "--seq-len" : "--model");
  }
  ApplyDevices(flags, request);
  Json& config = request["ds_config"];
  ApplyConfig(flags, config);
  if (is_model) {
    config = engine::ConfigForTrial(config, {}, std::max<int64_t>(1, request["ranks"]));
    config = engine::CanonicalConfig(config, engine::Auto::kDrop,
                                     flags.ds_config.empty() ? "stage_2" : flags.ds_config);
  }
  return request;
}

}  // namespace

int RunCommand(const Flags& flags, const EstimateFlags& estimate_flags) {
  if (const auto script = ScriptOf(estimate_flags)) {
    const Json answer = DryRun(*script);
    fmt::print("{}", flags.json ? answer.dump(2) + "\n" : TextOf(answer));
    return 0;
  }
  const Subject subject = SubjectOf(estimate_flags);
  const Planner planner = MakePlanner(subject.inputs, subject.cluster);
  std::vector<std::string> warnings;
  const PlannerEstimate estimate = planner.Of(subject.ds_config, &warnings);
  Warn(warnings);
  std::vector<Change> changes;
  if (!estimate.fits()) changes = planner.NearestChanges(subject.ds_config);
  std::vector<Variant> variants;
  if (!estimate_flags.stages.empty()) variants = planner.Variants(subject.ds_config);
  if (flags.json) {
    PrintJson(planner, estimate, changes, variants);
    return 0;
  }
  fmt::print("{}", HeadText(planner));
  if (!variants.empty()) {
    fmt::print("{}", VariantsText(variants));
    return 0;
  }
  fmt::print("{}", EstimateText(planner, subject.name, estimate));
  if (!estimate.fits()) fmt::print("{}", ChangesText(changes));
  return 0;
}

}  // namespace dsat::cli
