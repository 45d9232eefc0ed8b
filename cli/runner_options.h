// Running the trials of an experiment: its options, which are this build's programs, the command
// line's options and the hosts, and the run itself.
#pragma once

#include <string>
#include <string_view>

#include "cli/flags.h"
#include "searcher/runner.h"
#include "searcher/search/experiment.h"

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

// Runs the experiment with a progress display and stops it at Ctrl-C; options.out_dir is set.
// Returns kActive if it was stopped.
ExperimentState RunShown(const RunnerOptions& options, Experiment& experiment);
// The folder of the experiment's results: that of the command line, else as it was started.
std::string OutDir(const RunFlags& run, const Experiment& experiment);
// Throws if the file that `option` names as `path` would replace a folder, or a file that does not
// have `mark` at its beginning, as dsat's files of this `kind` ("a trace") have.
void CheckTarget(const std::string& option, const std::string& path, const std::string& kind,
                 std::string_view mark);

}  // namespace dsat::cli
