// The functions that several commands need to run the trials of an experiment.
#ifndef DSAT_CLI_SEARCH_COMMANDS_H_
#define DSAT_CLI_SEARCH_COMMANDS_H_

#include <string>

#include "cli/flags.h"
#include "searcher/runner.h"
#include "searcher/search/experiment.h"

namespace dsat::cli {

// Runs the experiment with a progress display and stops it at Ctrl-C; options.out_dir is set.
// Returns kActive if it was stopped.
ExperimentState RunShown(const RunnerOptions& options, Experiment& experiment);
// The folder of the experiment's results: that of the command line, else as it was started.
std::string OutDir(const RunFlags& run, const Experiment& experiment);

}  // namespace dsat::cli

#endif  // DSAT_CLI_SEARCH_COMMANDS_H_
