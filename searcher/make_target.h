// Chooses the launch target of an experiment, and refuses what it cannot launch.
#ifndef DSAT_SEARCHER_MAKE_TARGET_H_
#define DSAT_SEARCHER_MAKE_TARGET_H_

#include <memory>
#include <optional>
#include <string>

#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/launch/launch_target.h"

namespace dsat {

// The launch target of `spec`, from MakeBuiltinTarget or MakeCommandTarget.
std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary);

// The end of a trial whose config the built-in engine refuses, without a launch: infeasible.
// nullopt if it can be launched.
std::optional<Outcome> Refusal(const ExperimentSpec& spec, const Trial& trial);

}  // namespace dsat

#endif  // DSAT_SEARCHER_MAKE_TARGET_H_
