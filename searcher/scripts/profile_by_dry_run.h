// The profile of a search without a launch: a dry run of the script (docs/estimate.md).
#pragma once

#include <string>

#include "proto/experiment.h"
#include "searcher/launch/launch_target.h"

namespace dsat {

// A shell's command that runs the submitted configuration dry and writes rank 0's report with the
// profile, or with the reason that there is none, to the file `report`. "" if a shell hides the
// script.
std::string ProfileByDryRun(const ExperimentSpec& spec, const LaunchRequest& request,
                            const std::string& report);

}  // namespace dsat
