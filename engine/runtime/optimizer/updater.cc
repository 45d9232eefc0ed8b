// The optimizer's side of a step.
#include "engine/runtime/optimizer/updater.h"

#include <algorithm>
#include <cmath>

#include "engine/backend/stream.h"
#include "engine/runtime/optimizer/optimizer.h"
#include "engine/runtime/state/redistribute.h"

namespace dsat::engine {
namespace {

// The row of the plan's all-reduce; 0 if the plan has none.
int64_t RowElems(const Plan& plan) {
  const std::vector<CollectiveCall> calls = CallsOf(plan, {Op::kTrustRatios, Phase::kStep});
  return calls.empty() ? 0 : calls[0].row_elems;
}

// |parameter| / |direction| from the sums of squares, in [min_coeff, max_coeff]; 1 if either is 0.
float TrustRatio(float param_squares, float direction_squares, const OptimizerConfig& config) {
  if (param_squares == 0 || direction_squares == 0) return 1;
  const double ratio = std::sqrt(double{param_squares}) / std::sqrt(double{direction_squares});
  return static_cast<float>(std::clamp(ratio, config.min_coeff, config.max_coeff));
}

// The pieces of a sub-group, in order and cut where ranks' slices meet. The zeros that pad a
// parameter belong to its last piece, because they are copied with it.
ParamPieces PiecesOf(const Model& model, const Plan& plan, const UnitStates& states,
                     const SubGroup& group) {
  const bool shard = plan.optimizer_home == Placement::kShard;
  const int64_t slice = states.SliceElems(group.unit);
  const int64_t begin = (shard ? states.rank() * slice : 0) + group.offset;  // In the unit.
  const int64_t end = begin + group.num_elems;
  int64_t param = 0;
  for (int u = 0; u < group.unit; ++u)
    param += static_cast<int64_t>(model.layers[u]->params().size());
  ParamPieces pieces;
  const auto& specs = model.layers[group.unit]->params();
  const auto& layout = states.unit(group.unit).layout;
  for (size_t i = 0; i < specs.size(); ++i, ++param) {
    const int64_t param_begin = layout.offsets[i];
    const int64_t next = i + 1 < specs.size() ? layout.offsets[i + 1] : layout.num_elems;
    const int64_t param_end = std::min(end, next);
    // Cut where ranks' slices meet even if they all rest here: sums are formed in the same order.
    for (int64_t from = std::max(begin, param_begin); from < param_end;) {
      const int64_t row = from / slice;
      const int64_t to = std::min(param_end, (row + 1) * slice);
      pieces.push_back(
          {param, shard ? 0 : row, from - begin, to - from, specs[i].shape.size() > 1});
      from = to;
    }
  }
  return pieces;
}

// The settings for a piece: without weight decay where it does not apply.
OptimizerConfig SettingsOf(OptimizerConfig config, const ParamPiece& piece) {
  if (!piece.decays && !config.decay_norms_and_biases) config.weight_decay = 0;
  return config;
}

}  // namespace

Lamb::Lamb(const Plan& plan, const UnitStates& states, const std::vector<ParamPieces>& pieces,
           ProcessGroup& group)
    : plan_(plan),
      states_(states),
      group_(group),
      pieces_(pieces),
      ratios_(static_cast<size_t>(plan.num_trust_ratios)),
      row_elems_(RowElems(plan)),
      charge_(ChargeBuckets(states.memory().device, BucketBytes())) {
  for (const SubGroup& sub_group : plan.sub_groups)
    DSAT_CHECK(!sub_group.on_disk, "unit {}", sub_group.unit);
  if (row_elems_ > 0) bucket_ = group.Allocate(BucketBytes());
}

void Lamb::Prepare(const UpdateInputs& inputs) {
  const OptimizerConfig& config = inputs.optimizer;
  const bool shard = plan_.optimizer_home == Placement::kShard;
  const int num_rows = shard ? 1 : plan_.world_size;
  std::vector<LambSums> rows(ratios_.size() * static_cast<size_t>(num_rows));
  for (int g = 0; g < std::ssize(plan_.sub_groups); ++g) {
    const SubGroup& sub_group = plan_.sub_groups[g];
    const Tier tier = plan_.units[sub_group.unit].reduced_grad_tier();
    Kernels& kernels = states_.memory().kernels_of(tier);
    OptimizerView view = states_.Optimizer(sub_group, g);
    view.param = view.master;  // Not written, and not always here.
    for (const ParamPiece& piece : pieces_[g]) {
      const OptimizerView part = view.Slice(piece.begin, piece.num_elems);
      LambSums sums;
      kernels.Run(op::LambMoments{
          MakeAdamArgs(SettingsOf(config, piece), part, inputs.step, inputs.scales.of(tier)),
          &sums});
      LambSums& row = rows[static_cast<size_t>(piece.param * num_rows + piece.row)];
      row = row + sums;
    }
  }
  sums_.assign(2 * ratios_.size(), 0.0F);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t param = i / static_cast<size_t>(num_rows);
    sums_[2 * param] += static_cast<float>(rows[i].param);
    sums_[2 * param + 1] += static_cast<float>(rows[i].direction);
  }
  if (row_elems_ > 0) SumOverRanks();
  for (size_t i = 0; i < ratios_.size(); ++i)
    ratios_[i] = TrustRatio(sums_[2 * i], sums_[2 * i + 1], config);
}

// In f32 and in the order of ranks, as Prepare adds up what rests on one.
void Lamb::SumOverRanks() {
  Kernels& kernels = states_.memory().kernels;
  const auto bytes = static_cast<int64_t>(sums_.size() * sizeof(float));
  kernels.stream().Upload(bucket_.data, sums_.data(), bytes);
  group_.AllReduce(bucket_, DType::kF32, row_elems_);
  kernels.stream().Download(sums_.data(), bucket_.data, bytes);
}

void Lamb::Apply(Kernels& kernels, const UpdateInputs& inputs, int sub_group,
                 const OptimizerView& view) const {
  for (const ParamPiece& piece : pieces_[sub_group]) {
    const OptimizerView part = view.Slice(piece.begin, piece.num_elems);
    kernels.Run(
        op::LambApply{MakeAdamArgs(SettingsOf(inputs.optimizer, piece), part, inputs.step, nullptr),
                      ratios_[static_cast<size_t>(piece.param)]});
  }
}

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
  lamb_->Prepare(inputs_);
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
  if (lamb_) return lamb_->Apply(kernels, inputs_, sub_group, view);
  const OptimizerConfig& optimizer = inputs_.optimizer;
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
    view.param = staged.AsTensor(target.dtype);
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
