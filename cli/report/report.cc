// Reads what a report shows.
#include "cli/report/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/files.h"

namespace dsat::cli {
namespace {

// The trials that the answer names or is proved by, and the first others.
void KeepTrials(const std::map<TrialId, Trial>& all, Report& report) {
  const auto is_kept = [&](const Trial& trial) {
    return trial.kind != TrialKind::kSearch || report.IsPick(trial.id) ||
           std::ranges::find(report.verdict.alternatives, trial.id, &Alternative::trial) !=
               report.verdict.alternatives.end();
  };
  for (const bool first : {true, false}) {
    for (const auto& [id, trial] : all) {
      if (report.trials.size() < kMostTrials && is_kept(trial) == first)
        report.trials.emplace(id, trial);
    }
  }
  report.num_left_out = all.size() - report.trials.size();
}

// When the trials ran by the search's own clock, which stops while no runner is at work; if it is
// not known of any, when they were asked for and told.
void ReadSpans(const Store& store, Report& report) {
  for (const auto& [id, trial] : report.trials) {
    if (trial.times.ended_s > trial.times.started_s)
      report.spans[id] = {trial.times.started_s, trial.times.ended_s};
  }
  if (!report.spans.empty()) return;
  const QueryResult rows = store.Query(
      fmt::format("SELECT id, (julianday(asked_at) - min(julianday(asked_at)) OVER ()) * 86400,"
                  " (julianday(ended_at) - min(julianday(asked_at)) OVER ()) * 86400"
                  " FROM trials WHERE experiment = {}",
                  report.row.id));
  for (const std::vector<Json>& row : rows.rows) {
    const auto id = row.at(0).get<TrialId>();
    if (!report.trials.contains(id) || !row.at(1).is_number() || !row.at(2).is_number()) continue;
    report.spans[id] = {row.at(1).get<double>(), row.at(2).get<double>()};
  }
}

}  // namespace

Json Report::ConfigOf(const Trial& trial) const {
  const bool is_known = search != nullptr && trial.state == TrialState::kSucceeded;
  return is_known ? search->BestConfigOf(trial.id) : trial.ds_config;
}

std::string Report::TitleOf(const Trial& trial) const {
  const std::string& metric = spec.options.metric;
  std::string text = fmt::format("trial {}: {}, {}", trial.id, DescribeTrial(trial, metric),
                                 ToString(trial.state));
  for (const std::string& name : {metric, std::string("throughput"), std::string("peak_bytes")}) {
    const auto value = ValueAtBest(trial, metric, name);
    if (!value || (name == metric && metric == "throughput")) continue;
    text += ", " + std::string(name == "peak_bytes" ? "peak " : "") + DescribeMetric(name, *value);
  }
  if (!trial.reason.empty()) text += ": " + Printable(trial.reason.substr(0, 200));
  return text;
}

Report ReadReport(const Store& store, ExperimentId id, const Experiment* experiment) {
  Report report;
  report.spec = store.GetSpec(id);
  report.row = store.GetExperiment(id);
  report.state = StateText(store, report.row);
  report.db = std::filesystem::absolute(store.path()).string();
  report.made_at = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  if (experiment != nullptr) {
    report.search = &experiment->search();
    report.spec = report.search->spec();  // With the limits that were raised.
    report.verdict = VerdictOf(*report.search);
    report.out_dir = ResultsFolder(*experiment);
    report.has_results = std::filesystem::exists(report.out_dir + "/ds_config.json");
    KeepTrials(report.search->trials(), report);
  } else {
    std::map<TrialId, Trial> all;
    for (Trial& trial : store.Trials(id))
      all.emplace(trial.id, std::move(trial));
    KeepTrials(all, report);
  }
  ReadSpans(store, report);
  return report;
}

ShownUnit UnitFor(const Report& report, const std::string& metric) {
  double largest = 0;
  for (const auto& [id, trial] : report.trials) {
    if (const Metric* measured = MetricOf(report, trial, metric))
      largest = std::max(largest, measured->value);
  }
  return UnitFor(metric, largest);
}

const Metric* MetricOf(const Report& report, const Trial& trial, const std::string& metric) {
  return MetricAtBest(trial, report.spec.options.metric, metric);
}

}  // namespace dsat::cli
