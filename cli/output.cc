// Formats results as text and JSON.
#include "cli/output.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/table.h"
#include "cli/progress.h"
#include "searcher/results.h"

namespace dsat::cli {
namespace {

// Succeeded trials by the searched metric, best first; then the others by number.
std::vector<const Trial*> Ranked(const Search& search) {
  const std::string& metric = search.spec().options.metric;
  std::vector<const Trial*> trials;
  for (const auto& [id, trial] : search.trials())
    trials.push_back(&trial);
  std::stable_sort(trials.begin(), trials.end(), [&](const Trial* a, const Trial* b) {
    const auto x = MetricValue(*a, metric);
    const auto y = MetricValue(*b, metric);
    if (!x || !y) return x.has_value();
    return SmallerIsBetter(metric) ? *x < *y : *x > *y;
  });
  return trials;
}

// 5000000 as 5e6; other values as JSON.
std::string ShortValue(const Json& value) {
  std::string text = value.dump();
  const size_t last_digit = text.find_last_not_of('0');
  const size_t zeros = last_digit == text.npos ? 0 : text.size() - 1 - last_digit;
  if (!value.is_number_integer() || zeros < 4) return text;
  return fmt::format("{}e{}", text.substr(0, text.size() - zeros), zeros);
}

bool IsSetting(const std::string& pointer) {
  return !pointer.ends_with("/stage") && pointer != "/train_micro_batch_size_per_gpu";
}

// The settings that all searched trials share, which their lines omit; empty if there is only one
// trial.
Assignment CommonSettings(const Search& search) {
  std::optional<Assignment> common;
  int64_t num_searched = 0;
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind != TrialKind::kSearch) continue;
    ++num_searched;
    if (!common) common = trial.assignment;
    std::erase_if(*common, [&trial](const auto& entry) {
      const auto found = trial.assignment.find(entry.first);
      return found == trial.assignment.end() || found->second != entry.second;
    });
  }
  return num_searched > 1 ? *common : Assignment();
}

// "reduce_bucket_size=5e8 overlap_comm=true": the settings of `assignment` that are not in
// `without`.
std::string SettingsText(const Assignment& assignment, const Assignment& without) {
  std::string text;
  for (const auto& [pointer, value] : assignment) {
    if (!IsSetting(pointer) || without.contains(pointer)) continue;
    const std::string key = pointer.substr(pointer.rfind('/') + 1);
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, ShortValue(value));
  }
  return text;
}

std::string LastCell(const Trial& trial, const Assignment& common) {
  if (!trial.reason.empty()) return trial.reason;
  if (trial.kind != TrialKind::kSearch) return "(" + ToString(trial.kind) + ")";
  return SettingsText(trial.assignment, common);
}

std::vector<std::string> Row(const Trial& trial, const std::string& metric,
                             const Assignment& common) {
  const auto cell = [&](const std::string& name) -> std::string {
    const auto value = MetricValue(trial, name);
    return value ? DescribeMetric(name, *value) : "";
  };
  const Json* stage = FindAtPointer(trial.ds_config, "/zero_optimization/stage");
  return {std::to_string(trial.id),
          ToString(trial.state),
          stage == nullptr ? "0" : stage->dump(),
          std::to_string(ConfigPoint(trial).micro_batch_size),
          cell(metric),
          cell(metric == "throughput" ? "latency" : "throughput"),
          cell("peak_bytes"),
          LastCell(trial, common)};
}

}  // namespace

std::string SummaryText(const Experiment& experiment, size_t columns) {
  const Search& search = experiment.search();
  const std::string& metric = search.spec().options.metric;
  std::string text =
      fmt::format("experiment {} ({}), {}, {}{}{}\n", experiment.id(),
                  Printable(search.spec().name), search.spec().method, ToString(experiment.state()),
                  experiment.reason().empty() ? "" : ": ", Printable(experiment.reason()));
  if (search.profile()) text += DescribeProfile(experiment) + "\n";
  const Assignment common_settings = CommonSettings(search);
  const std::string common = SettingsText(common_settings, {});
  std::vector<std::vector<std::string>> rows;
  for (const Trial* trial : Ranked(search))
    rows.push_back(Row(*trial, metric, common_settings));
  text +=
      FormatTable({"trial", "state", "stage", "micro-batch", metric,
                   metric == "throughput" ? "latency" : "throughput", "peak memory", "settings"},
                  rows, columns);
  if (!common.empty()) text += "in every searched trial: " + common + "\n";
  if (search.NumRefused() > 0)
    text += fmt::format("not launched: {} configurations that are predicted not to fit\n",
                        search.NumRefused());
  if (const auto best = search.Best()) {
    const Trial& trial = search.trials().at(*best);
    text += fmt::format("best: trial {}, {}, {}", trial.id, DescribeConfig(trial),
                        DescribeMetric(metric, *MetricValue(trial, metric)));
    if (const auto factor = GainOverSubmitted(search))
      text += fmt::format(", {:.2f} times the submitted configuration", *factor);
    text += "\n";
  }
  return text;
}

Json TrialJson(const Trial& trial, const std::string& metric) {
  Json json{{"id", trial.id},
            {"kind", ToString(trial.kind)},
            {"state", ToString(trial.state)},
            {"reason", trial.reason},
            {"assignment", ToJson(trial.assignment)},
            {"ds_config", trial.ds_config},
            {"metrics", nullptr}};
  if (const PointResult* best = BestPoint(trial, metric))
    json["metrics"] = ToJson(best->measurement);
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
            {"factor_over_submitted", nullptr},
            {"num_not_launched", search.NumRefused()},
            {"trials", Json::array()}};
  if (!out_dir.empty()) json["out_dir"] = out_dir;
  if (search.profile()) json["profile"] = ToJson(*search.profile());
  if (search.space()) json["space"] = ToJson(*search.space());
  if (const auto best = search.Best()) json["best_trial"] = *best;
  if (const auto factor = GainOverSubmitted(search)) json["factor_over_submitted"] = *factor;
  for (const auto& [id, trial] : search.trials())
    json["trials"].push_back(TrialJson(trial, search.spec().options.metric));
  return json;
}

}  // namespace dsat::cli
