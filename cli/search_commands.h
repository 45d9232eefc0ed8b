// dsat auto|asha|binary|random|grid and dsat resume: searches, and the full run after a search.
#ifndef DSAT_CLI_SEARCH_COMMANDS_H_
#define DSAT_CLI_SEARCH_COMMANDS_H_

#include <string>

#include "cli/flags.h"
#include "searcher/experiment.h"
#include "searcher/runner.h"

namespace dsat::cli {

// Runs the experiment with a progress display and stops it at Ctrl-C; options.out_dir is set.
// Returns kActive if it was stopped.
ExperimentState RunShown(const RunnerOptions& options, Experiment& experiment);
// The folder of the experiment's results: that of the command line, else as it was started.
std::string OutDir(const RunFlags& run, const Experiment& experiment);

// Each returns the exit code and throws Error on bad input. `flags` is the whole command line
// (--db, --json).
int RunCommand(const Flags& flags, const SearchFlags& search);
int RunCommand(const Flags& flags, const ResumeFlags& resume);

}  // namespace dsat::cli

#endif  // DSAT_CLI_SEARCH_COMMANDS_H_
