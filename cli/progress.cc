// Shows the progress of a search.
#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "cli/output/output.h"

namespace dsat::cli {
namespace {

std::string EndOfTrial(const Trial& trial, const std::string& metric) {
  std::string line = fmt::format("trial {:>3}  {:<24}  {:<10}", trial.id,
                                 DescribeTrial(trial, metric), ToString(trial.state));
  const auto value = MetricValue(trial, metric);
  if (value) line += "  " + DescribeMetric(metric, *value);
  if (value && metric != "throughput") {
    if (const auto throughput = ValueAtBest(trial, metric, "throughput"))
      line += "  " + DescribeMetric("throughput", *throughput);
  }
  if (const auto peak = ValueAtBest(trial, metric, "peak_bytes"))
    line += "  peak " + HumanBytes(static_cast<int64_t>(*peak));
  if (!trial.reason.empty()) line += "  " + Printable(trial.reason);
  return line;
}

}  // namespace

void ProgressDisplay::PrintLine(const std::string& line) {
  status_.Clear();
  Say(stderr, line + "\n");  // May be several lines.
}

void ProgressDisplay::DrawStatus(const Experiment& experiment) {
  if (!status_.live()) return;
  const Search& search = experiment.search();
  const SearchOptions& options = search.spec().options;
  const int64_t ended = std::ranges::count_if(search.trials(), [](const auto& entry) {
    const Trial& trial = entry.second;
    return trial.state != TrialState::kRunning && !RunsAgain(trial.kind);
  });
  const std::string left = TimeLeft(search, ended);
  std::vector<std::string> parts = {
      search.confirmation() != nullptr
          ? fmt::format("{} rounds of confirmation", search.confirmation()->NumRounds())
          : fmt::format("{}/{} trials", ended, options.max_trials)};
  for (const TrialId id : search.Running()) {
    const auto step = steps_.find(id);
    parts.push_back(
        fmt::format(", {}{}: {}{}", parts.size() == 1 ? "running " : "", id,
                    DescribeTrial(search.trials().at(id), options.metric),
                    step == steps_.end() ? "" : fmt::format(", step {}", step->second)));
  }
  if (const auto best = search.Best()) {
    parts.push_back(
        ", best " +
        DescribeMetric(options.metric, *MetricValue(search.trials().at(*best), options.metric)));
  }
  if (!left.empty()) parts.push_back(", " + left);
  const auto infeasible = std::ranges::count_if(search.trials(), [](const auto& entry) {
    return entry.second.state == TrialState::kInfeasible;
  });
  if (infeasible > 0) parts.push_back(fmt::format(", {} infeasible", infeasible));
  status_.Draw(parts);
}

// How long the present phase takes: "at most 3 min 05 s left", or up to the next look of the
// confirmation; "" if nothing says.
std::string ProgressDisplay::TimeLeft(const Search& search, int64_t ended) const {
  const SearchState& state = search;
  if (const Confirmation* confirmation = search.confirmation()) {
    const std::vector<TrialId> arms = confirmation->Arms();
    if (arms.empty() || !confirmation->Next()) return "";
    const int64_t rounds = confirmation->NumRounds();
    double round_s = 0;
    for (const TrialId arm : arms)
      round_s += state.LaunchSeconds(arm);
    if (rounds >= kFirstLook) round_s *= 2 / static_cast<double>(arms.size());
    const double look_s = round_s * static_cast<double>(confirmation->NextLook() - rounds);
    return fmt::format("{} to the look after {}", DescribeDuration(look_s),
                       confirmation->NextLook());
  }
  const int64_t left = search.spec().options.max_trials - ended;
  if (ended_ == 0 || left <= 0) return "";
  const double seconds =
      std::min(SecondsLeft(started_, ended_, ended_ + left), state.SecondsLeft());
  return fmt::format("at most {} left", DescribeDuration(std::max(seconds, 0.0)));
}

void ProgressDisplay::OnEvent(const Experiment& experiment, const RunnerEvent& event) {
  const auto& trials = experiment.search().trials();
  switch (event.kind) {
    case RunnerEvent::Kind::kTrialStarted:
      steps_.erase(event.trial);
      if (!status_.live() && event.attempt > 0)
        PrintLine(fmt::format("trial {:>3}  attempt {}", event.trial, event.attempt + 1));
      break;
    case RunnerEvent::Kind::kTrialProgress:
      steps_[event.trial] = event.step;
      break;
    case RunnerEvent::Kind::kTrialEnded:
      ++ended_;
      steps_.erase(event.trial);
      PrintLine(EndOfTrial(trials.at(event.trial), experiment.search().spec().options.metric));
      break;
    case RunnerEvent::Kind::kProfiled:
      PrintLine(DescribeProfile(experiment.search()) + DescribeLeftOut(experiment.search()));
      break;
    case RunnerEvent::Kind::kNote:
      PrintLine(Printable(event.text));
      break;
  }
  DrawStatus(experiment);
}

}  // namespace dsat::cli
