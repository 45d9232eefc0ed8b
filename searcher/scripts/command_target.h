// The user's own command as a launch target.
#pragma once

#include <memory>

#include "proto/experiment.h"
#include "searcher/launch/launch_target.h"

namespace dsat {

// Runs the command and measures what it trains (docs/external.md). Throws kInvalidArgument if the
// entrypoint neither names a DeepSpeed config file that can be replaced nor starts Python, if it
// starts another number of ranks than slots_per_trial, or if the profiled steps are not start <
// end.
std::unique_ptr<LaunchTarget> MakeCommandTarget(const ExperimentSpec& spec);

}  // namespace dsat
