// Compares experiments by their specs and takes the evidence from their logs.
#include "searcher/search/warm_start.h"

#include <map>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "base/error.h"
#include "methods/warm_start.h"
#include "searcher/search/search.h"

namespace dsat {
namespace {

constexpr int64_t kMostLookedAt = 200;  // Newest first.

// The facts that decide how fast trials run, without the name of the machine and what is measured
// anew.
Json Hardware(const ExperimentSpec& spec) {
  Json hardware = spec.machine;
  hardware.erase("host");
  hardware.erase("host_options");
  hardware.erase("disk");
  return hardware;
}

bool RunsAlike(const ExperimentSpec& a, const ExperimentSpec& b) {
  return a.slots_per_trial == b.slots_per_trial && a.device == b.device &&
         IsBuiltin(a) == IsBuiltin(b) && a.environment == b.environment &&
         Hardware(a) == Hardware(b);
}

// nullopt if it has no search space or no trial that was measured.
std::optional<EarlierSearch> EvidenceOf(const Store& store, ExperimentId id,
                                        const ExperimentSpec& spec) {
  if (!spec.candidate.is_null()) return std::nullopt;
  std::optional<SearchSpace> space;
  if (spec.profile) space = Search(spec).space();
  std::map<TrialId, TrialTimes> times;
  for (const Event& event : store.Events(id)) {
    if (event.kind != EventKind::kTold) continue;
    times[event.trial] = ToldTimes(event);
    if (const auto told = ToldSpace(event)) space = told;
  }
  if (!space) return std::nullopt;
  EarlierSearch earlier{.experiment = id, .space = *std::move(space), .trials = {}};
  bool measured = false;
  for (Trial& trial : store.Trials(id)) {
    const bool succeeded = trial.state == TrialState::kSucceeded && !trial.points.empty();
    // Longer runs and those of another batch belong to the answer of that search.
    if (RunsAgain(trial.kind) && trial.kind != TrialKind::kConfirm) continue;
    if (!succeeded && trial.state != TrialState::kInfeasible) continue;
    measured = measured || (succeeded && trial.kind != TrialKind::kProfile);
    trial.times = times[trial.id];
    earlier.trials.push_back(std::move(trial));
  }
  return measured ? std::optional(std::move(earlier)) : std::nullopt;
}

// The spec of an experiment; nullopt if a newer dsat has made it.
std::optional<ExperimentSpec> SpecOf(const Store& store, ExperimentId id) {
  try {
    return store.GetSpec(id);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kFailedPrecondition) throw;
    return std::nullopt;
  }
}

std::optional<EarlierSearch> FindAutomatically(const Store& store, const ExperimentSpec& spec) {
  if (Hardware(spec).empty()) return std::nullopt;
  std::optional<EarlierSearch> other;
  const std::vector<ExperimentRow> rows = store.ListExperiments();
  for (const ExperimentRow& row : rows | std::views::reverse | std::views::take(kMostLookedAt)) {
    const std::optional<ExperimentSpec> theirs = SpecOf(store, row.id);
    if (!theirs || !RunsAlike(spec, *theirs)) continue;
    const bool same =
        spec.entrypoint == theirs->entrypoint && spec.hyperparameters == theirs->hyperparameters;
    if (!same && other) continue;
    std::optional<EarlierSearch> found = EvidenceOf(store, row.id, *theirs);
    if (!found) continue;
    found->same_machine = true;
    if (same) return found;
    other = std::move(found);
  }
  return other;
}

}  // namespace

Json FindPrior(const Store& store, const ExperimentSpec& spec) {
  const std::string& wanted = spec.options.auto_method.warm_start;
  if (wanted == "auto") {
    const std::optional<EarlierSearch> found = FindAutomatically(store, spec);
    return found ? ToJson(*found) : Json();
  }
  const ExperimentId id = store.FindExperiment(wanted);
  const ExperimentSpec theirs = store.GetSpec(id);
  std::optional<EarlierSearch> found = EvidenceOf(store, id, theirs);
  if (!found) {
    Throw(ErrorCode::kFailedPrecondition,
          "--warm-start: experiment {} has measured no configuration that a search can start from; "
          "name another one, or pass off",
          id);
  }
  found->same_machine = RunsAlike(spec, theirs);
  return ToJson(*found);
}

}  // namespace dsat
