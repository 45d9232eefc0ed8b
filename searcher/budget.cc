// Compares what was spent with the options.
#include "searcher/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/regex.h"
#include "searcher/search/confirm.h"

namespace dsat {
namespace {

// A failure without the numbers that tell launches apart: of the rank that was the first to fail,
// and of the trial and the attempt in the path of a file.
std::string WithoutLaunch(std::string reason) {
  static const RE2 number(R"((\[?rank ?|/trials/|/attempt)\d+)", RegexOptions());
  RE2::GlobalReplace(&reason, number, R"(\1)");
  return reason;
}

// "" unless the first launches of the submitted configuration and of those after it, two or more,
// have failed in the same way, and no other trial has succeeded or was started beside them and
// runs.
std::string FailureOfSubmitted(const Experiment& experiment) {
  const Search& search = experiment.search();
  const std::optional<TrialId> submitted = search.Submitted();
  if (!submitted || search.trials().at(*submitted).state != TrialState::kFailed) return "";
  std::vector<std::string> reasons;
  for (const auto& [id, trial] : search.trials()) {
    if (id <= *submitted) continue;
    if (trial.state == TrialState::kSucceeded) return "";
    if (trial.state == TrialState::kRunning && id < search.FirstAfterSubmitted()) return "";
  }
  for (const auto& [id, trial] : search.trials()) {
    if (id < *submitted || trial.state == TrialState::kRunning) continue;
    if (id > *submitted && reasons.size() >= 2) break;
    for (const Experiment::Attempt& launch : experiment.Attempts(id)) {
      // A launch that has ended well has not measured what the trial needs.
      const bool lacks = launch.end && launch.end->state == TrialState::kSucceeded &&
                         trial.state == TrialState::kFailed;
      if (!lacks && (!launch.end || launch.end->state != TrialState::kFailed)) return "";
      reasons.push_back(lacks ? trial.reason : launch.end->reason);
    }
  }
  const auto is_alike = [&](const std::string& reason) {
    return WithoutLaunch(reason) == WithoutLaunch(reasons[0]);
  };
  return reasons.size() >= 2 && std::ranges::all_of(reasons, is_alike) ? reasons[0] : "";
}

// The part of the limits that is kept for the proof.
constexpr double kProofPart = 0.5;

// A part of the limits is kept for what comes next.
struct Reserve {
  double seconds = 0;
  std::string what = {};
};

// Keeps the time of the confirmation up to its first look, with all arms that it has so far, if
// launches take as long as so far; of one launch if there is nothing to compare; and none once it
// has begun, or before anything was measured. The profiling trial also compiles extensions, and
// says nothing of the others.
Reserve ReserveOf(const Search& search) {
  constexpr int64_t kMostArms = kMostFinalists + 1;  // With the submitted configuration.
  if (search.confirmation() != nullptr) return {};
  double seconds = 0, launches = 0;
  int64_t arms = 0;
  for (const auto& [id, trial] : search.trials()) {
    const double took = trial.times.seconds();
    if (took <= 0 || trial.kind == TrialKind::kProfile) continue;
    seconds += took;
    ++launches;
    arms += trial.state == TrialState::kSucceeded ? 1 : 0;
  }
  if (launches == 0) return {};
  if (arms < 2) return {seconds / launches, "a launch"};
  const int64_t rounds = std::min(search.spec().options.confirm_rounds, kFirstLook);
  const auto count = static_cast<double>(std::min(arms, kMostArms) * rounds);
  return {count * seconds / launches, "its confirmation"};
}

}  // namespace

std::optional<std::string> WhySearchIsOver(const Experiment& experiment, const Spent& spent) {
  const Search& search = experiment.search();
  const SearchOptions& limits = search.spec().options;
  if (const std::string failure = FailureOfSubmitted(experiment); !failure.empty()) {
    return fmt::format("the submitted configuration fails every time in the same way: {}", failure);
  }
  const Reserve reserve = ReserveOf(search);
  const auto is_used = [](const std::optional<double>& limit, double used, double reserved) {
    return limit && used + std::min(reserved, kProofPart * *limit) >= *limit;
  };
  const std::string next = reserve.seconds > 0 ? fmt::format(", and {} takes about {:.0f} s",
                                                             reserve.what, reserve.seconds)
                                               : "";
  if (is_used(limits.max_time_s, spent.clock_s, reserve.seconds))
    return fmt::format("--max-time: the search has run for {:.0f} s{}", spent.clock_s, next);
  const double hours = spent.slot_seconds / 3600;
  const double next_hours =
      reserve.seconds * static_cast<double>(search.spec().slots_per_trial) / 3600;
  if (is_used(limits.max_device_hours, hours, next_hours))
    return fmt::format("--max-device-hours: trials have used {:.3g} hours{}", hours, next);
  return std::nullopt;
}

}  // namespace dsat
