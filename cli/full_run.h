// The production run: dsat train, and --run-full-experiment after a search.
#ifndef DSAT_CLI_FULL_RUN_H_
#define DSAT_CLI_FULL_RUN_H_

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/flags.h"
#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/runner.h"

namespace dsat::cli {

// Where this build's programs are and how trials run, on which hosts; out_dir is left to be set.
// Reads the hostfile and .deepspeed_env, and throws if they are wrong: called before anything is
// recorded or started.
RunnerOptions MakeRunnerOptions(const RunFlags& run);

// Reads an experiment file, logs its warnings and gives them in `warnings`.
ExperimentSpec ReadSpec(const std::string& config, const std::string& model_dir,
                        std::vector<std::string>* warnings);
// Logs those of `warnings` that are not in `logged`.
void LogNew(const std::vector<std::string>& warnings, const std::vector<std::string>& logged);

// Where a training shows its steps as it goes.
enum class StepsTo {
  kStdout,      // A line of text each.
  kStdoutJson,  // A JSON object per line.
  kStderr,      // Text; stdout is for another result.
};

// How a training ended, and what it left.
struct FullRun {
  std::string out_dir;
  Outcome outcome;  // kStopped: interrupted.
  std::optional<int64_t> last_step;
  double loss = 0;                        // At last_step.
  std::optional<double> validation_loss;  // The newest.
  std::string checkpoint;                 // Folder of the newest one, "" if there is none.
};

// Trains to the end with `ds_config`. Throws if it cannot be started.
FullRun RunFull(const ExperimentSpec& spec, const Json& ds_config, const RunnerOptions& options,
                StepsTo steps_to);

Json ToJson(const FullRun& run);
// Of a training that has succeeded or was interrupted. Throws kAborted with the reason for all
// others.
int ExitCodeOf(const FullRun& run);

}  // namespace dsat::cli

#endif  // DSAT_CLI_FULL_RUN_H_
