// Chooses the launch target of an experiment.
#ifndef DSAT_SEARCHER_MAKE_TARGET_H_
#define DSAT_SEARCHER_MAKE_TARGET_H_

#include <memory>
#include <string>

#include "proto/experiment.h"
#include "searcher/launch/launch_target.h"

namespace dsat {

// The launch target of `spec`, from MakeBuiltinTarget or MakeCommandTarget.
std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary);

}  // namespace dsat

#endif  // DSAT_SEARCHER_MAKE_TARGET_H_
