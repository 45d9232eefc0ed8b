// 1-bit Adam.
#include "engine/runtime/optimizer/one_bit_adam.h"

#include "engine/runtime/optimizer/optimizer.h"

namespace dsat::engine {

OneBitAdam::OneBitAdam(const Plan& plan, const UnitStates& states, ProcessGroup& group)
    : plan_(plan), states_(states) {
  if (group.size() == 1) return;
  const Memory& memory = states.memory();
  for (const SubGroup& sub_group : plan.sub_groups) {
    averages_.try_emplace(sub_group.unit, sub_group.num_elems, group, memory.kernels,
                          memory.device);
  }
}

void OneBitAdam::Prepare(const OptimizerConfig& config, int64_t step, float grad_scale) {
  for (int g = 0; g < static_cast<int>(plan_.sub_groups.size()); ++g) {
    const SubGroup& sub_group = plan_.sub_groups[g];
    const OptimizerView view = states_.Optimizer(sub_group, g);
    states_.memory().kernels.MomentumStep(MakeAdamArgs(config, view, step, grad_scale));
    if (!averages_.empty()) averages_.at(sub_group.unit).Run(view.moments[0]);
  }
}

void OneBitAdam::Apply(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                       int64_t step) const {
  kernels.FrozenAdamStep(MakeAdamArgs(config, view, step, 1));
}

}  // namespace dsat::engine
