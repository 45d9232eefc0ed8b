// DeepSpeed's learning-rate schedules as functions of the number of updates.
//
// DeepSpeed (deepspeed/runtime/lr_schedules.py, 0.19) steps its scheduler after an update, and the
// scheduler starts before its first value. So the first update has the rate of the schedule's
// start, the second that of iteration 0, the third that of iteration 1. A skipped step is no
// update.
#pragma once

#include <cstdint>

#include "engine/config/ds_config.h"

namespace dsat::engine {

// The learning rate of the update after `num_updates` updates.
double LearningRate(const OptimizerConfig& optimizer, const SchedulerConfig& scheduler,
                    int64_t num_updates);

// The optimizer's settings for the update after `num_updates` updates: its learning rate, and its
// betas if OneCycle cycles them and the optimizer has any.
OptimizerConfig ScheduledSettings(const OptimizerConfig& optimizer,
                                  const SchedulerConfig& scheduler, int64_t num_updates);

}  // namespace dsat::engine
