// How trials are run: this build's programs, the command line's options, and the hosts.
#ifndef DSAT_CLI_RUNNER_OPTIONS_H_
#define DSAT_CLI_RUNNER_OPTIONS_H_

#include "cli/flags.h"
#include "searcher/runner.h"

namespace dsat::cli {

// The options for a runner with the hosts of `run`; out_dir remains to be set. Reads the hostfile
// and .deepspeed_env and connects to the hosts. Throws if one of them is wrong, so that it is
// called before anything is recorded or started.
RunnerOptions MakeRunnerOptions(const RunFlags& run);

}  // namespace dsat::cli

#endif  // DSAT_CLI_RUNNER_OPTIONS_H_
