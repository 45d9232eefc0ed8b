// A launcher's command on each host of a hostfile or a job.
#pragma once

#include <string>
#include <vector>

#include "searcher/launch/launch_target.h"

namespace dsat {

// `argv` for each host of an attempt, in their order: its launcher starts only the ranks of that
// host, without ssh, and they connect to those of the other hosts. Options for the placement of
// ranks and for their rendezvous are replaced. Writes the file `hostfile` for DeepSpeed's launcher.
// REQUIRES: FindRankLauncher(argv), and the request has slots.
std::vector<std::vector<std::string>> ArgvOfHosts(const std::vector<std::string>& argv,
                                                  const LaunchRequest& request,
                                                  const std::string& hostfile);

}  // namespace dsat
