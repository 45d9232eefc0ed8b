// The options for running trials: this build's programs, the command line's options, and the hosts.
#ifndef DSAT_CLI_RUNNER_OPTIONS_H_
#define DSAT_CLI_RUNNER_OPTIONS_H_

#include <string>

#include "cli/flags.h"
#include "searcher/runner.h"

namespace dsat::cli {

// The options for a runner with the hosts of `run`; out_dir remains to be set. Reads the hostfile
// and .deepspeed_env and connects to the hosts. Throws if one of them is wrong, so that it is
// called before anything is recorded or started.
RunnerOptions MakeRunnerOptions(const RunFlags& run);

// Refuses what a runner would refuse: called before an experiment is recorded. Creates the folder
// of the results.
void CheckRunnable(const ExperimentSpec& spec, const RunFlags& run, const RunnerOptions& options);

// A line that names --slots and what to do if trials of `spec` would run at the same time on more
// slots than this machine has; "" if they would not.
std::string SharedSlotsWarning(const ExperimentSpec& spec, const RunnerOptions& options);

// Completes the options for trials of `spec` that get jobs of Slurm; else does nothing. Throws if
// Slurm refuses such jobs.
void PlanSlurm(const ExperimentSpec& spec, RunnerOptions* options);

}  // namespace dsat::cli

#endif  // DSAT_CLI_RUNNER_OPTIONS_H_
