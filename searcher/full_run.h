// Runs one full training with the launcher of trials (dsat train, --run-full-experiment).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "proto/training_step.h"
#include "searcher/runner.h"

namespace dsat {

// Trains with `ds_config`. `on_progress` is called for each step and each validation that rank 0 of
// the built-in engine records in OUT/metrics.jsonl, again for those that a restart trains again.
// `num_cancels` returns how often the user has asked to stop and is called a few times a second: at
// the first time the built-in engine saves a checkpoint before it ends, at the second time it is
// killed. The outcome is then kStopped. A training of the built-in engine that has lost a rank is
// started again from its newest checkpoint, at most spec.max_restarts times in a row without a
// further step. A training that a full disk has ended is started again, too, unless that happens
// twice without a checkpoint in between. Any other outcome kInfeasible is final, such as that of a
// training that diverges. Logs and results are in options.out_dir, which is locked. The total time
// is not limited. Throws as Runner::Run.
Outcome RunFullTraining(const ExperimentSpec& spec, const Json& ds_config,
                        const RunnerOptions& options,
                        const std::function<void(const TrainingStep&)>& on_progress,
                        const std::function<int64_t()>& num_cancels);

// The checkpoint that a training in `out_dir` continues from if it is good; "" if there is none.
std::string NewestCheckpoint(const std::string& out_dir);

}  // namespace dsat
