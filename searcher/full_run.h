// Runs one full training with the launcher of trials (dsat train, --run-full-experiment).
#ifndef DSAT_SEARCHER_FULL_RUN_H_
#define DSAT_SEARCHER_FULL_RUN_H_

#include <cstdint>
#include <functional>

#include "searcher/runner.h"

namespace dsat {

// A step or a validation that a full training reports.
struct TrainingProgress {
  int64_t step = 0;
  double loss = 0;
  double latency_ms = 0;
  bool validated = false;  // True if `loss` is that of the validation data.
};

// Trains with `ds_config`. `on_progress` is called for each step and each validation that rank 0 of
// the built-in engine reports. `num_cancels` returns how often the user has asked to stop and is
// called a few times a second: at the first time the built-in engine saves a checkpoint before it
// ends, at the second time it is killed. The outcome is then kStopped. Logs and results are in
// options.out_dir. The total time is not limited. Throws as Runner::Run.
Outcome RunFullTraining(const ExperimentSpec& spec, const Json& ds_config,
                        const RunnerOptions& options,
                        const std::function<void(const TrainingProgress&)>& on_progress,
                        const std::function<int64_t()>& num_cancels);

}  // namespace dsat

#endif  // DSAT_SEARCHER_FULL_RUN_H_
