// The production run: dsat train, and --run-full-experiment after a search.
#ifndef DSAT_CLI_FULL_RUN_H_
#define DSAT_CLI_FULL_RUN_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "cli/flags.h"
#include "proto/experiment.h"
#include "searcher/runner.h"

namespace dsat::cli {

// Where this build's programs are and how trials run.
RunnerOptions MakeRunnerOptions(const RunFlags& run, const std::string& out_dir);

// Reads an experiment file, logs its warnings and gives them in `warnings`.
ExperimentSpec ReadSpec(const std::string& config, const std::string& model_dir,
                        std::vector<std::string>* warnings);
// Logs those of `warnings` that are not in `logged`.
void LogNew(const std::vector<std::string>& warnings, const std::vector<std::string>& logged);

// Trains to the end with `ds_config`, printing the loss as it goes (to stdout; as one JSON object
// per line if `json`). Returns the exit code.
int RunFull(const ExperimentSpec& spec, const Json& ds_config, const RunnerOptions& options,
            bool json);

}  // namespace dsat::cli

#endif  // DSAT_CLI_FULL_RUN_H_
