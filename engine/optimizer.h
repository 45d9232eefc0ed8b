// Which update a configuration asks for, and the learning rate of a step.
#ifndef DSAT_ENGINE_OPTIMIZER_H_
#define DSAT_ENGINE_OPTIMIZER_H_

#include <cstdint>

#include "engine/backend/kernels.h"
#include "engine/config/ds_config.h"
#include "engine/unit_state.h"

namespace dsat::engine {

// f32 vectors it keeps per parameter element: 2 for Adam, 1 for SGD with momentum, 0 without.
int NumMoments(const OptimizerConfig& config);

// One update of `view`. `step` is 1 at the first; the gradient is multiplied by `grad_scale` first.
void OptimizerStep(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                   float lr, int64_t step, float grad_scale);

// The learning rate of the update after `num_updates` updates. As in DeepSpeed, whose scheduler is
// stepped after an update and starts before its first value: the first update has the rate of the
// schedule's start, the second that of iteration 0, the third that of iteration 1.
double LearningRate(const OptimizerConfig& optimizer, const SchedulerConfig& scheduler,
                    int64_t num_updates);

// By what gradients of norm `norm` are multiplied so that their norm is at most `max_norm` (0:
// any): max_norm / (norm + 1e-6) if that is below 1, as DeepSpeed.
double ClipFactor(double norm, double max_norm);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_OPTIMIZER_H_
