// Chooses the launch target of an experiment, and refuses what it cannot launch.
#include "searcher/make_target.h"

#include <fmt/format.h>

#include "engine/config/ds_config.h"
#include "searcher/launch/builtin_target.h"
#include "searcher/scripts/command_target.h"

namespace dsat {

std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary) {
  return IsBuiltin(spec) ? MakeBuiltinTarget(spec, trial_binary) : MakeCommandTarget(spec);
}

std::optional<Outcome> Refusal(const ExperimentSpec& spec, const Trial& trial) {
  if (!IsBuiltin(spec)) return std::nullopt;
  try {
    std::vector<std::string> warnings;
    engine::ParseDsConfig(trial.ds_config, fmt::format("trial {}", trial.id), spec.slots_per_trial,
                          &warnings);
    return std::nullopt;
  } catch (const Error& error) {
    return Outcome{TrialState::kInfeasible, error.what()};
  }
}

}  // namespace dsat
