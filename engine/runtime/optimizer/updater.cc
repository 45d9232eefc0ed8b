// The optimizer's side of a step.
#include "engine/runtime/optimizer/updater.h"

#include "engine/backend/stream.h"
#include "engine/runtime/optimizer/optimizer.h"

namespace dsat::engine {

Updater::Updater(const Model& model, const Plan& plan, UnitStates& states, ProcessGroup& group)
    : plan_(plan), states_(states) {
  if (plan.sub_groups.empty()) return;  // Evaluation, or a pipeline stage of frozen units.
  for (const SubGroup& sub_group : plan.sub_groups) {
    pieces_.push_back(PiecesOf(model, plan, states, sub_group));
    const UnitPlan& unit = plan.units[sub_group.unit];
    if (unit.reduced_grad_tier() != Tier::kDevice || unit.param.tier != Tier::kDevice)
      host_needs_scale_ = true;
  }
  if (plan.num_trust_ratios > 0) lamb_.emplace(plan, states, pieces_, group);
  if (lamb_ || !plan.reduces_grads) host_needs_scale_ = true;
  if (plan.reduces_grads || group.size() == 1) return;
  const Memory& memory = states.memory();
  for (const SubGroup& sub_group : plan.sub_groups) {
    averages_.try_emplace(sub_group.unit, sub_group.num_elems, group, memory.kernels,
                          memory.device);
  }
}

void Updater::TrustRatios() {
  lamb_->Prepare(inputs_.optimizer, inputs_.step, inputs_.scales);
}

void Updater::AverageMomentum(int sub_group) {
  const SubGroup& group = plan_.sub_groups[sub_group];
  const OptimizerView view = states_.Optimizer(group, sub_group);
  states_.memory().kernels.Run(
      op::MomentumStep{MakeAdamArgs(inputs_.optimizer, view, inputs_.step, inputs_.scales.device)});
  if (!averages_.empty()) averages_.at(group.unit).Run(view.moments[0]);
}

void Updater::ResetCompressionErrors() {
  for (auto& [unit, average] : averages_)
    average.ResetErrors();
}

void Updater::Step(Kernels& kernels, int sub_group, const OptimizerView& view) {
  const OptimizerConfig& optimizer = inputs_.optimizer;
  if (lamb_) return lamb_->Apply(kernels, optimizer, sub_group, view, inputs_.step);
  const Tier tier = plan_.units[plan_.sub_groups[sub_group].unit].reduced_grad_tier();
  const StepScale* scale = inputs_.scales.of(tier);
  if (optimizer.decay_norms_and_biases) return StepElems(kernels, optimizer, view, scale);
  for (const ParamPiece& piece : pieces_[sub_group]) {
    StepElems(kernels, SettingsOf(optimizer, piece), view.Slice(piece.begin, piece.num_elems),
              scale);
  }
}

// Some elements of a sub-group.
void Updater::StepElems(Kernels& kernels, const OptimizerConfig& optimizer,
                        const OptimizerView& view, const StepScale* scale) {
  if (plan_.reduces_grads) return OptimizerStep(kernels, optimizer, view, inputs_.step, scale);
  kernels.Run(op::FrozenAdamStep{MakeAdamArgs(optimizer, view, inputs_.step, nullptr)});
}

void Updater::Update(int sub_group) {
  const SubGroup& group = plan_.sub_groups[sub_group];
  const Memory& memory = states_.memory();
  const Tier tier = plan_.units[group.unit].reduced_grad_tier();  // Where it is computed.
  const bool from_device = tier == Tier::kDevice;
  Kernels& kernels = memory.kernels_of(tier);
  OptimizerView view = states_.Optimizer(group, sub_group);
  if (view.param.num_elems > 0) return Step(kernels, sub_group, view);
  // The parameters rest elsewhere.
  const Tensor target = Target(group);
  const bool crosses = from_device != (plan_.units[group.unit].param.tier == Tier::kDevice);
  Buffer staged;
  if (!crosses) {
    view.param = target;
  } else if (target.dtype == view.master.dtype) {
    view.param = view.master;
  } else {
    staged = memory.arena(tier).Allocate(target.dtype, target.num_elems, "updated parameters");
    view.param = staged.AsTensor(target.dtype).Slice(0, target.num_elems);
  }
  Step(kernels, sub_group, view);
  if (!crosses) return;
  from_device ? memory.kernels.stream().CopyToHost(target, view.param)
              : memory.kernels.stream().CopyToDevice(target, view.param);
}

// Where the updated parameters go; of a slice on disk, its copy in host memory.
Tensor Updater::Target(const SubGroup& group) {
  SwapFile* slices = states_.slice_swap();
  const bool on_disk = plan_.units[group.unit].param.tier == Tier::kNvme;
  if (on_disk && !slices->InMemory(group.unit)) slices->Create(group.unit);
  return states_.ParamOf(group);
}

}  // namespace dsat::engine
