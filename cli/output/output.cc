// Says what a trial, a measurement and a profile are, and formats results as text and JSON.
#include "cli/output/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "base/files.h"
#include "base/table.h"
#include "searcher/search/config_change.h"
#include "searcher/search/runner_lock.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// Succeeded trials by the searched metric, best first; then the others by number, and at last those
// that ran again, whose single measurements rank nothing.
std::multimap<std::pair<int, double>, const Trial*> Ranked(const Search& search) {
  const std::string& metric = search.spec().options.metric;
  const double sign = SmallerIsBetter(metric) ? 1 : -1;
  std::multimap<std::pair<int, double>, const Trial*> ranked;  // Equal ones stay in their order.
  for (const auto& [id, trial] : search.trials()) {
    const auto value = MetricValue(trial, metric);
    const bool has_value = trial.state == TrialState::kSucceeded && value;
    const int group = RunsAgain(trial.kind) ? 2 : has_value ? 0 : 1;
    ranked.emplace(std::pair(group, group == 0 ? sign * *value : 0), &trial);
  }
  return ranked;
}

// The assignment of a trial with the sizes of the point that its metrics are of.
Assignment AssignmentOfBest(const Trial& trial, const std::string& metric) {
  const Point point = BestOrConfigPoint(trial, metric);
  Assignment assignment = trial.assignment;
  if (assignment.contains(kMicroBatchKey)) assignment[kMicroBatchKey] = point.micro_batch_size;
  if (assignment.contains(kAccumulationKey))
    assignment[kAccumulationKey] = point.accumulation_steps;
  return assignment;
}

// The settings that all searched trials share, which their lines omit; empty if there is only one
// trial.
Assignment CommonSettings(const Search& search) {
  std::optional<Assignment> common;
  int64_t num_searched = 0;
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind != TrialKind::kSearch) continue;
    ++num_searched;
    const Assignment assignment = AssignmentOfBest(trial, search.spec().options.metric);
    if (!common) common = assignment;
    std::erase_if(*common, [&assignment](const auto& entry) {
      const auto found = assignment.find(entry.first);
      return found == assignment.end() || found->second != entry.second;
    });
  }
  return num_searched > 1 ? *common : Assignment();
}

std::string LastCell(const Trial& trial, const std::string& metric, const Assignment& common) {
  const std::string of = trial.confirms ? fmt::format(" of {}", *trial.confirms) : "";
  const std::string what = trial.kind == TrialKind::kSearch
                               ? SettingsText(AssignmentOfBest(trial, metric), common)
                               : fmt::format("({}{})", ToString(trial.kind), of);
  if (trial.reason.empty()) return what;
  return what.empty() ? trial.reason : fmt::format("{}: {}", what, trial.reason);
}

std::vector<std::string> Row(const Trial& trial, const std::string& metric,
                             const Assignment& common) {
  const auto cell = [&](const std::string& name) -> std::string {
    const auto value = ValueAtBest(trial, metric, name);
    return value ? DescribeMetric(name, *value) : "";
  };
  return {std::to_string(trial.id),
          ToString(trial.state),
          std::to_string(ZeroStage(trial.ds_config)),
          std::to_string(BestOrConfigPoint(trial, metric).micro_batch_size),
          cell(metric),
          cell(metric == "throughput" ? "latency" : "throughput"),
          cell("peak_bytes"),
          LastCell(trial, metric, common)};
}

// Says what is predicted of a stage, and of its places with activation checkpointing or offload.
std::string DescribeStage(const SearchSpace& space, int stage) {
  std::vector<const StageSpace*> places;
  for (const StageSpace& place : space.stages) {
    if (place.stage == stage) places.push_back(&place);
  }
  if (places.empty()) return "";
  const auto num_on = [](const StageSpace* place) {
    return std::ranges::count_if(place->settings, [](const auto& setting) {
      return setting.second != false && setting.second != 0 && setting.second != "none";
    });
  };
  const StageSpace& plain = **std::ranges::min_element(places, {}, num_on);
  const char* about = space.exact ? "" : "about ";
  std::string text = fmt::format("\nstage {}: ", stage);
  if (plain.state_bytes > 0)
    text += fmt::format("{} of model states and buffers, ", HumanBytes(plain.state_bytes));
  text += plain.approx_max_micro_batch > 0
              ? fmt::format("micro-batches up to {}{}", about, plain.approx_max_micro_batch)
              : "predicted not to fit with the submitted keys";
  if (places.size() == 1) return text;
  int64_t most = 0;
  for (const StageSpace* place : places)
    most = std::max(most, place->approx_max_micro_batch);
  if (most == 0) return text + ", also with checkpointing or offload";
  return text +
         fmt::format("; with checkpointing or offload ({}) up to {}{}",
                     places.size() == 2 ? "one place" : fmt::format("{} places", places.size() - 1),
                     about, most);
}

}  // namespace

std::string DescribeConfig(const Trial& trial, const std::string& metric) {
  return fmt::format("stage {}, micro-batch {}", ZeroStage(trial.ds_config),
                     BestOrConfigPoint(trial, metric).micro_batch_size);
}

std::string DescribeTrial(const Trial& trial, const std::string& metric) {
  if (trial.kind == TrialKind::kProfile) return "profile";
  if (trial.kind == TrialKind::kSubmitted) return "as submitted";
  if (trial.kind == TrialKind::kReference)
    return fmt::format("as submitted, batch {}", trial.ds_config.value("train_batch_size", 0));
  if (trial.kind == TrialKind::kSoak) return fmt::format("soaks trial {}", *trial.confirms);
  if (trial.kind == TrialKind::kLarger)
    return fmt::format("trial {} with batch {}", *trial.confirms,
                       trial.ds_config.value("train_batch_size", 0));
  if (trial.confirms) return fmt::format("confirms trial {}", *trial.confirms);
  return DescribeConfig(trial, metric);
}

ShownUnit UnitFor(const std::string& metric, double largest) {
  std::vector<ShownUnit> units = {{MetricUnit(metric), 1}};
  if (metric == "FLOPS_per_gpu") units = {{"MFLOP/s", 1e6}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}};
  if (metric == "peak_bytes")
    units = {{"KiB", 1024}, {"MiB", 1024.0 * 1024}, {"GiB", 1024.0 * 1024 * 1024}};
  while (units.size() > 1 && largest < units.back().scale)
    units.pop_back();
  return units.back();
}

std::string DescribeMetric(const std::string& metric, double value) {
  if (metric == "peak_bytes") return HumanBytes(static_cast<int64_t>(value));
  const auto [unit, scale] = UnitFor(metric, value);
  const bool is_fine = unit == "TFLOP/s" || (unit == "ms" && value < 10);
  return fmt::format("{:.{}f} {}", value / scale, is_fine ? 2 : 1, unit);
}

std::string DescribeProfile(const Search& search) {
  const ModelProfile& profile = *search.profile();
  std::string text = fmt::format(
      "model: {:.2f} M parameters, {:.2f} M trainable; device memory {} per rank; "
      "activations {} per sample",
      static_cast<double>(profile.num_params) / 1e6,
      static_cast<double>(profile.trainable_num_params) / 1e6,
      HumanBytes(profile.device_memory_bytes), HumanBytes(profile.activation_bytes_per_sample));
  if (!profile.dry_places.empty()) text += ", by a dry run";
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  if (profile.matmul_flops_per_s > 0 && profile.copy_bytes_per_s > 0) {
    const auto flops = static_cast<double>(profile.matmul_flops_per_s);
    text +=
        fmt::format("\nspeed of a rank: {} in matrix multiplication, {:.1f} GB/s copied",
                    DescribeMetric("FLOPS_per_gpu", flops), gigabytes(profile.copy_bytes_per_s));
    const Json* bf16 = FindAtPointer(search.spec().ds_config, "/bf16/enabled");
    const bool in_bf16 = bf16 != nullptr && *bf16 == true && profile.device == "cpu";
    if (in_bf16 && search.spec().machine.value("multiplies_bf16", true) == false)
      text += " (bf16 in f32: the processor has no bf16 instructions)";
    if (profile.to_device_bytes_per_s > 0) {
      text += fmt::format(", {:.1f} GB/s to the device, {:.1f} GB/s from it",
                          gigabytes(profile.to_device_bytes_per_s),
                          gigabytes(profile.to_host_bytes_per_s));
    }
  }
  if (profile.micro_batch_1_peak_bytes > 0) {
    text += fmt::format("\npeak memory of a rank: {} at micro-batch 1",
                        HumanBytes(profile.micro_batch_1_peak_bytes));
    if (profile.micro_batch_2_peak_bytes > 0)
      text += fmt::format(", {} at 2", HumanBytes(profile.micro_batch_2_peak_bytes));
  }
  for (const int stage : search.spec().options.zero_stages)
    text += DescribeStage(*search.space(), stage);
  return text;
}

std::string DescribeLeftOut(const Search& search) {
  const size_t left_out = search.space()->left_out.size();
  if (left_out == 0) return "";
  return fmt::format("\nleft out: {} (dsat space and dsat show --json say why)", left_out);
}

Factor RatioOfSpeeds(const Center& one, const Center& other, int64_t rounds) {
  Factor ratio{.value = std::exp(one.mean - other.mean)};
  if (one.dof <= 0) return ratio;
  const bool has_error = other.dof > 0;
  const double others = has_error ? other.variance : one.variance * static_cast<double>(rounds);
  const double variance = one.variance + others;
  double dof = static_cast<double>(one.dof);
  if (has_error && variance > 0) {
    dof = variance * variance /
          (one.variance * one.variance / dof + others * others / static_cast<double>(other.dof));
  }
  const double half = StudentQuantile(0.975, std::max<int64_t>(std::llround(std::floor(dof)), 1)) *
                      std::sqrt(variance);
  ratio.low = ratio.value * std::exp(-half);
  ratio.high = ratio.value * std::exp(half);
  return ratio;
}

std::string SettingsText(const Assignment& assignment, const Assignment& without) {
  std::string text;
  for (const auto& [pointer, value] : assignment) {
    if (pointer == kStageKey || pointer == kMicroBatchKey || without.contains(pointer)) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", ShortName(pointer), ShortValue(value));
  }
  return text;
}

bool IsRunning(const Store& store, const ExperimentRow& row) {
  return row.state == ExperimentState::kActive && RunnerLock::IsHeld(store.path(), row.id);
}

std::string StateText(const Store& store, const ExperimentRow& row) {
  const bool interrupted =
      row.state == ExperimentState::kActive && row.has_runner && !IsRunning(store, row);
  return interrupted ? "interrupted" : ToString(row.state);
}

std::string ResultsFolder(const Experiment& experiment) {
  const ExperimentSpec& spec = experiment.search().spec();
  const std::string dir =
      spec.out_dir.empty() ? fmt::format("dsat-out/{}", experiment.id()) : spec.out_dir;
  // An experiment that dsat create has made belongs to no folder.
  const fs::path path = spec.start_dir.empty() ? fs::absolute(dir) : fs::path(spec.start_dir) / dir;
  if (!spec.out_dir.empty()) return path.string();
  return FreeFolder(path.string(), FolderOwner(experiment.store(), experiment.id()));
}

std::string SummaryText(const Experiment& experiment, size_t columns) {
  const Search& search = experiment.search();
  const std::string& metric = search.spec().options.metric;
  const Store& store = experiment.store();
  const std::string state = StateText(store, store.GetExperiment(experiment.id()));
  const Verdict verdict = VerdictOf(search);
  std::string text = ShortAnswer(search, verdict, experiment.id());
  text += fmt::format("{}experiment {} ({}), {}, {}{}{}\n", text.empty() ? "" : "\n",
                      experiment.id(), Printable(search.spec().name), search.spec().method, state,
                      experiment.reason().empty() ? "" : ": ", Printable(experiment.reason()));
  if (search.profile())
    text += DescribeProfile(experiment.search()) + DescribeLeftOut(experiment.search()) + "\n";
  const Assignment common_settings = CommonSettings(search);
  const std::string common = SettingsText(common_settings);
  std::vector<std::vector<std::string>> rows;
  for (const auto& [rank, trial] : Ranked(search))
    rows.push_back(Row(*trial, metric, common_settings));
  text +=
      FormatTable({"trial", "state", "stage", "micro-batch", metric,
                   metric == "throughput" ? "latency" : "throughput", "peak memory", "settings"},
                  rows, columns);
  if (!common.empty()) text += "in every searched trial: " + common + "\n";
  if (search.NumRefused() > 0)
    text += fmt::format("not launched: {} configurations that are predicted not to fit\n",
                        search.NumRefused());
  for (const AnswerLine& line : AnswerLines(search, verdict))
    text += line.name + ": " + line.text + "\n";
  return text;
}

Json TrialJson(const Search& search, TrialId id) {
  const Trial& trial = search.trials().at(id);
  const PointResult* best = BestPoint(trial, search.spec().options.metric);
  const Assignment assignment = AssignmentOfBest(trial, search.spec().options.metric);
  Json json{{"id", trial.id},
            {"kind", ToString(trial.kind)},
            {"state", ToString(trial.state)},
            {"reason", trial.reason},
            {"assignment", assignment},
            {"ds_config", search.BestConfigOf(id)},
            {"metrics", nullptr},
            {"losses", nullptr},
            {"rank_peak_bytes", nullptr},
            {"other_processes", trial.times.others}};
  if (trial.confirms) json["confirms"] = *trial.confirms;
  if (best == nullptr) return json;
  json["metrics"] = ToJson(best->measurement);
  if (!best->losses.empty()) json["losses"] = best->losses;
  if (!best->rank_peak_bytes.empty()) json["rank_peak_bytes"] = best->rank_peak_bytes;
  return json;
}

Json SummaryJson(const Experiment& experiment, const std::string& out_dir) {
  const Search& search = experiment.search();
  Json json{{"experiment", experiment.id()},
            {"name", search.spec().name},
            {"method", search.spec().method},
            {"metric", search.spec().options.metric},
            {"state", ToString(experiment.state())},
            {"reason", experiment.reason()},
            {"profile", nullptr},
            {"best_trial", nullptr},
            {"num_not_launched", search.NumRefused()},
            {"trials", Json::array()}};
  if (!out_dir.empty()) json["out_dir"] = out_dir;
  if (search.profile()) json["profile"] = ToJson(*search.profile());
  if (search.space()) json["space"] = ToJson(*search.space());
  const Verdict verdict = VerdictOf(search);
  if (verdict.pick) json["best_trial"] = *verdict.pick;
  json["factor_over_submitted"] = verdict.factor ? ToJson(*verdict.factor) : Json();
  json["verdict"] = ToJson(verdict);
  for (const auto& [id, trial] : search.trials())
    json["trials"].push_back(TrialJson(search, id));
  return json;
}

}  // namespace dsat::cli
