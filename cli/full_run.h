// The full training run: dsat train, and --run-full-experiment after a search.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/runner.h"

namespace dsat::cli {

// Where the steps of a training are printed while it runs.
enum class StepsTo {
  kStdout,      // A line of text each.
  kStdoutJson,  // A JSON object per line.
  kStderr,      // Text; stdout is for another result.
};

// How a training ended, and its results.
struct FullRun {
  std::string out_dir;
  Outcome outcome;  // kStopped: interrupted.
  // The last step of the whole training, of which this run may have been the last part.
  std::optional<int64_t> last_step;
  std::optional<double> loss;             // At last_step.
  int64_t num_skipped = 0;                // Steps without an update.
  std::optional<double> validation_loss;  // The last one.
  std::optional<double> searcher_metric;  // The last one that the ranks of a command reported.
  std::string checkpoint;  // The folder of the newest checkpoint, "" if there is none.
};

// Trains to the end with `ds_config` and prints the steps, and after an interrupt what continues:
// `again`, such as "the same command". Throws if the training cannot be started.
FullRun RunFull(const ExperimentSpec& spec, const Json& ds_config, const RunnerOptions& options,
                StepsTo steps_to, const std::string& again);

Json ToJson(const FullRun& run);
// The exit code of a training that has succeeded or was interrupted. Throws kAborted with the
// reason if it has failed.
int ExitCodeOf(const FullRun& run);

}  // namespace dsat::cli
