// 1-bit Adam (Tang et al. 2021; DeepSpeed's OnebitAdam): Adam until freeze_step, then the variance
// stays as it is, no gradient is reduced any more, and what ranks exchange is one bit per element
// of the momentum.
#ifndef DSAT_ENGINE_RUNTIME_OPTIMIZER_ONE_BIT_ADAM_H_
#define DSAT_ENGINE_RUNTIME_OPTIMIZER_ONE_BIT_ADAM_H_

#include <cstdint>
#include <map>

#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/plan/plan.h"
#include "engine/runtime/optimizer/compressed_average.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// The steps after freeze_step.
class OneBitAdam {
 public:
  // A collective call. Compression errors, which start at zero and are in no checkpoint (as in
  // DeepSpeed), are charged to the device's arena; none with one rank. All arguments must outlive
  // this. Throws OutOfMemory. REQUIRES: every sub-group is a whole unit that rests replicated.
  OneBitAdam(const Plan& plan, const UnitStates& states, ProcessGroup& group);

  // Runs kAverageMomentum: the sub-group's momentum from this rank's own gradients times
  // the factor of `scale`, then its mean over the ranks, the same bits on all. A collective call.
  void AverageMomentum(const OptimizerConfig& config, int sub_group, int64_t step,
                       const StepScale* scale);
  // Sets the compression errors to zero, as a loaded checkpoint needs it.
  void ResetErrors();
  // The step of one sub-group. REQUIRES: AverageMomentum came before.
  void Apply(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
             int64_t step) const;

 private:
  const Plan& plan_;
  const UnitStates& states_;
  std::map<int, CompressedAverage> averages_;  // By unit.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_OPTIMIZER_ONE_BIT_ADAM_H_
