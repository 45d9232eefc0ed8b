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

void OneBitAdam::AverageMomentum(const OptimizerConfig& config, int sub_group, int64_t step,
                                 const StepScale* scale) {
  const OptimizerView view = states_.Optimizer(plan_.sub_groups[sub_group], sub_group);
  states_.memory().kernels.Run(op::MomentumStep{MakeAdamArgs(config, view, step, scale)});
  if (!averages_.empty()) averages_.at(plan_.sub_groups[sub_group].unit).Run(view.moments[0]);
}

void OneBitAdam::ResetErrors() {
  for (auto& [unit, average] : averages_)
    average.ResetErrors();
}

void OneBitAdam::Apply(Kernels& kernels, const OptimizerConfig& config, const OptimizerView& view,
                       int64_t step) const {
  kernels.Run(op::FrozenAdamStep{MakeAdamArgs(config, view, step, nullptr)});
}

}  // namespace dsat::engine
