// Compares what was spent with the options.
#include "searcher/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

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

}  // namespace

std::optional<std::string> WhySearchIsOver(const Experiment& experiment, const Spent& spent) {
  const SearchOptions& limits = experiment.search().spec().options;
  if (limits.max_time_s && spent.clock_s >= *limits.max_time_s)
    return fmt::format("--max-time: the search has run for {:.0f} s", spent.clock_s);
  const double hours = spent.slot_seconds / 3600;
  if (limits.max_device_hours && hours >= *limits.max_device_hours)
    return fmt::format("--max-device-hours: trials have used {:.3g} hours", hours);
  const std::string failure = FailureOfSubmitted(experiment);
  if (failure.empty()) return std::nullopt;
  return fmt::format("the submitted configuration fails every time in the same way: {}", failure);
}

}  // namespace dsat
