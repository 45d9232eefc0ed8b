// dsat's own engine as a launch target.
#ifndef DSAT_SEARCHER_LAUNCH_BUILTIN_TARGET_H_
#define DSAT_SEARCHER_LAUNCH_BUILTIN_TARGET_H_

#include <memory>
#include <string>

#include "proto/experiment.h"
#include "searcher/launch/launch_target.h"

namespace dsat {

// Runs one dsat-trial process per rank, which reports by gRPC. `trial_binary` is the program's
// path.
std::unique_ptr<LaunchTarget> MakeBuiltinTarget(const ExperimentSpec& spec,
                                                const std::string& trial_binary);

}  // namespace dsat

#endif  // DSAT_SEARCHER_LAUNCH_BUILTIN_TARGET_H_
