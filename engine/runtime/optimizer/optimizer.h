// The update that a configuration asks for.
#pragma once

#include <cstdint>

#include "engine/backend/optimizer_kernels.h"
#include "engine/config/ds_config.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// The number of moments per parameter element: 2 for Adam and LAMB; 1 for Adagrad, Lion and SGD
// with momentum; 0 for SGD without momentum.
int NumMoments(const OptimizerConfig& config);

bool IsOneBit(const OptimizerConfig& config);

// Updates `view`, which may be any part of a unit. `step` is 1 at the first update. The gradient is
// multiplied by `scale`'s factor first. REQUIRES: not LAMB, which needs norms of whole parameters
// (engine/runtime/optimizer/updater.h).
void OptimizerStep(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                   int64_t step, const StepScale* scale);

// The operands of one update of Adam or LAMB.
AdamArgs MakeAdamArgs(const OptimizerConfig& config, const OptimizerView& view, int64_t step,
                      const StepScale* scale);

}  // namespace dsat::engine
