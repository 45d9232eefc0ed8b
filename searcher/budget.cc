// Compares what was spent with the options.
#include "searcher/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "searcher/confirm.h"

namespace dsat {
namespace {

// "" unless the submitted configuration has failed repeatedly in the same way.
std::string FailureOfSubmitted(const Experiment& experiment) {
  const Search& search = experiment.search();
  const std::optional<TrialId> submitted = search.Submitted();
  if (!submitted || search.trials().at(*submitted).state != TrialState::kFailed) return "";
  const std::vector<Experiment::Attempt> launches = experiment.Attempts(*submitted);
  if (launches.size() < 2) return "";
  const auto fails_alike = [&](const Experiment::Attempt& launch) {
    return launch.end && launch.end->state == TrialState::kFailed &&
           launch.end->reason == launches[0].end->reason;
  };
  return std::ranges::all_of(launches, fails_alike) ? launches[0].end->reason : "";
}

// The seconds that the first rounds of the confirmation will take if it has as many arms as it can
// and launches take as long as so far; 0 once it has begun.
double SecondsToConfirm(const Search& search) {
  constexpr double kMostArms = kMostFinalists + 1;  // With the submitted configuration.
  if (search.confirmation() != nullptr) return 0;
  double seconds = 0, launches = 0;
  for (const auto& [id, trial] : search.trials()) {
    const double took = trial.times.ended_s - trial.times.started_s;
    if (took <= 0) continue;
    seconds += took;
    ++launches;
  }
  const auto rounds = static_cast<double>(search.spec().options.confirm_rounds);
  return launches > 0 ? kMostArms * rounds * seconds / launches : 0;
}

}  // namespace

std::optional<std::string> WhySearchIsOver(const Experiment& experiment, const Spent& spent) {
  const Search& search = experiment.search();
  const SearchOptions& limits = search.spec().options;
  const double confirm_s = SecondsToConfirm(search);
  // The confirmation gets half of a small budget.
  const auto is_used = [](const std::optional<double>& limit, double used, double reserved) {
    return limit && used + std::min(reserved, *limit / 2) >= *limit;
  };
  const std::string next =
      confirm_s > 0 ? fmt::format(", and its confirmation takes about {:.0f} s", confirm_s) : "";
  if (is_used(limits.max_time_s, spent.clock_s, confirm_s))
    return fmt::format("--max-time: the search has run for {:.0f} s{}", spent.clock_s, next);
  const double hours = spent.slot_seconds / 3600;
  const double confirm_hours =
      confirm_s * static_cast<double>(search.spec().slots_per_trial) / 3600;
  if (is_used(limits.max_device_hours, hours, confirm_hours))
    return fmt::format("--max-device-hours: trials have used {:.3g} hours{}", hours, next);
  const std::string failure = FailureOfSubmitted(experiment);
  if (failure.empty()) return std::nullopt;
  return fmt::format("the submitted configuration fails every time in the same way: {}", failure);
}

}  // namespace dsat
