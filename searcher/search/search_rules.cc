// Refuses what a search cannot accept.
#include "searcher/search/search_rules.h"

#include "base/error.h"
#include "engine/config/batch.h"
#include "engine/config/validate.h"
#include "methods/methods.h"
#include "methods/options.h"

namespace dsat {

void CheckSearchSpec(const ExperimentSpec& spec) {
  ValidateOptions(spec.options);
  if (spec.candidate.is_null()) FindMethod(spec.method);
  if (spec.slots_per_trial < 1) {
    Throw(ErrorCode::kInvalidArgument, "resources.slots_per_trial: {}; expected 1 or more",
          spec.slots_per_trial);
  }
  if (IsBuiltin(spec) && !spec.options.loss_pattern.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "--loss-pattern: \"{}\" is for a command of your own; the built-in engine reports its "
          "losses: leave the option out",
          spec.options.loss_pattern);
  }
  const std::optional<int64_t>& max_slots = spec.options.max_slots;
  if (max_slots && *max_slots < spec.slots_per_trial) {
    Throw(ErrorCode::kInvalidArgument,
          "--max-slots: {} is too few for one trial; expected {} or more "
          "(resources.slots_per_trial)",
          *max_slots, spec.slots_per_trial);
  }
  const std::string source = spec.ds_config_path.empty() ? "ds_config" : spec.ds_config_path;
  const Json resolved = engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial);
  engine::ValidateDsConfig(resolved, source, spec.slots_per_trial);
}

Outcome CheckedOutcome(const Trial& trial, const Outcome& outcome, const std::string& metric) {
  if (outcome.state != TrialState::kSucceeded) return outcome;
  if (trial.kind == TrialKind::kProfile) {
    if (trial.profile) return outcome;
    return {TrialState::kFailed, "the profiling trial ended without a model profile"};
  }
  if (MetricValue(trial, metric)) return outcome;
  std::string other;  // Another metric that it could be searched by.
  for (const PointResult& point : trial.points)
    if (point.measurement.contains("throughput"))
      other =
          ", the metric of this search; one that is created with --metric throughput can use it";
  return {TrialState::kFailed,
          fmt::format("the trial ended without measuring {}{}", metric, other)};
}

}  // namespace dsat
