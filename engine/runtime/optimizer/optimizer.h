// Which update a configuration asks for.
#ifndef DSAT_ENGINE_RUNTIME_OPTIMIZER_OPTIMIZER_H_
#define DSAT_ENGINE_RUNTIME_OPTIMIZER_OPTIMIZER_H_

#include <cstdint>

#include "engine/backend/kernels.h"
#include "engine/config/ds_config.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// Vectors it keeps per parameter element: 2 for Adam and LAMB; 1 for Adagrad, Lion and SGD with
// momentum; 0 for SGD without.
int NumMoments(const OptimizerConfig& config);

bool IsOneBit(const OptimizerConfig& config);

// One update of `view`, which may be any part of a unit. `step` is 1 at the first; the gradient is
// multiplied by `grad_scale` first. REQUIRES: not LAMB, which wants norms of whole parameters
// (engine/runtime/optimizer/lamb.h).
void OptimizerStep(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                   int64_t step, float grad_scale);

// The operands of one update of Adam or LAMB.
AdamArgs MakeAdamArgs(const OptimizerConfig& config, const OptimizerView& view, int64_t step,
                      float grad_scale);

// By what gradients of norm `norm` are multiplied so that their norm is at most `max_norm` (0:
// any): max_norm / (norm + 1e-6) if that is below 1, as DeepSpeed.
double ClipFactor(double norm, double max_norm);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_OPTIMIZER_OPTIMIZER_H_
