// The interpreter of plans.
#include "engine/executor.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "engine/optimizer.h"

namespace dsat::engine {

Executor::Executor(const Model& model, const Plan& plan, const DsConfig& config, UnitStates& states,
                   Redistributor& redistributor, BatchLoader& loader, ProcessGroup& group,
                   Kernels& kernels, Arena& arena)
    : model_(model),
      plan_(plan),
      config_(config),
      states_(states),
      redistributor_(redistributor),
      loader_(loader),
      group_(group),
      kernels_(kernels),
      arena_(arena),
      inputs_of_(model.layers.size()),
      saved_(model.layers.size()) {
  if (config.optimizer.type == "lamb") {
    lamb_.emplace(model, plan, states, group, kernels, arena);
  }
}

StepOutputs Executor::Run(const StepInputs& inputs) {
  using Clock = std::chrono::steady_clock;
  inputs_ = inputs;
  outputs_ = {};
  const int64_t flops_before = kernels_.flops();
  Clock::time_point before = Clock::now();
  for (const Instruction& instruction : plan_.instructions) {
    Execute(instruction);
    const Clock::time_point after = Clock::now();
    outputs_.phase_ms[static_cast<size_t>(instruction.phase)] +=
        std::chrono::duration<double, std::milli>(after - before).count();
    before = after;
  }
  outputs_.flops = kernels_.flops() - flops_before;
  return outputs_;
}

void Executor::Execute(const Instruction& i) {
  switch (i.op) {
    case Op::kLoadBatch:
      outputs_.activation_bytes = 0;
      loader_.Load(inputs_.step, i.micro_batch);
      break;
    case Op::kForward:
      Forward(i.unit);
      break;
    case Op::kBackward:
      Backward(i.unit);
      break;
    case Op::kPack:
      redistributor_.Pack(i.transfer, i.unit);
      break;
    case Op::kStart:
      redistributor_.Start(i.transfer);
      break;
    case Op::kWait:
      redistributor_.Wait(i.transfer);
      break;
    case Op::kFreeParam:
      states_.unit(i.unit).gathered.Free();
      break;
    case Op::kFreeGrad:
      states_.unit(i.unit).grad.Free();
      break;
    case Op::kNorm:
      Norm();
      break;
    case Op::kUpdate:
      Update(i.unit);
      break;
    case Op::kMeanLoss:
      MeanLoss();
      break;
  }
}

void Executor::Forward(int unit) {
  const int64_t flops_before = kernels_.flops();
  const int64_t bytes_before = arena_.live_bytes();
  inputs_of_[unit] = std::move(output_);
  const std::vector<Tensor> params = states_.LayerParams(unit);
  double loss = 0;
  const LayerContext context = {.kernels = kernels_,
                                .arena = arena_,
                                .dtype = states_.dtype(),
                                .batch = loader_.batch(),
                                .params = params,
                                .grads = {},
                                .loss_grad_scale = LossGradScale(),
                                .loss = &loss};
  output_ = model_.layers[unit]->Forward(context, inputs_of_[unit], saved_[unit]);
  outputs_.loss += loss;
  outputs_.forward_flops += kernels_.flops() - flops_before;
  outputs_.activation_bytes += arena_.live_bytes() - bytes_before;
}

void Executor::Backward(int unit) {
  const std::vector<Tensor> params = states_.LayerParams(unit);
  const std::vector<Tensor> grads = states_.LayerGrads(unit);
  const LayerContext context = {.kernels = kernels_,
                                .arena = arena_,
                                .dtype = states_.dtype(),
                                .batch = loader_.batch(),
                                .params = params,
                                .grads = grads,
                                .loss_grad_scale = LossGradScale(),
                                .loss = nullptr};
  output_ =
      model_.layers[unit]->Backward(context, inputs_of_[unit], std::move(output_), saved_[unit]);
  inputs_of_[unit].Free();
  saved_[unit].clear();
}

// Summed slice by slice, in the order of the ranks, wherever the slices are: every placement gives
// the same bits.
void Executor::Norm() {
  const bool shard = plan_.optimizer_home == Placement::kShard;
  double sum = 0;
  for (int row = 0; row < (shard ? 1 : plan_.world_size); ++row) {
    double row_sum = 0;
    for (int u = 0; u < states_.num_units(); ++u) {
      const int64_t slice_elems = states_.SliceElems(u);
      if (slice_elems == 0) continue;
      const Tensor grad = states_.Optimizer(u).grad;
      row_sum += kernels_.SumOfSquares(grad.Slice(row * slice_elems, slice_elems));
    }
    sum += row_sum;
  }
  if (shard) sum = group_.SumScalar(sum);
  outputs_.grad_norm = std::sqrt(sum) / plan_.world_size / inputs_.loss_scale;
  outputs_.skipped = config_.check_grad_overflow && !std::isfinite(outputs_.grad_norm);
  if (lamb_ && !outputs_.skipped) lamb_->Prepare(inputs_.optimizer, inputs_.update, GradScale());
}

void Executor::Update(int unit) {
  if (!outputs_.skipped && lamb_) {
    lamb_->Update(inputs_.optimizer, unit, inputs_.update);
  } else if (!outputs_.skipped) {
    OptimizerStep(kernels_, inputs_.optimizer, states_.Optimizer(unit), inputs_.update,
                  GradScale());
  }
  states_.FreeGrads(unit);
}

void Executor::MeanLoss() {
  const double mean = outputs_.loss / static_cast<double>(config_.batch.accumulation_steps);
  outputs_.loss = group_.SumScalar(mean) / plan_.world_size;
}

float Executor::LossGradScale() const {
  return static_cast<float>(inputs_.loss_scale /
                            static_cast<double>(config_.batch.accumulation_steps));
}

// Gradients are sums over the ranks, of a scaled loss, until the update: averaging, unscaling and
// clipping are one factor.
float Executor::GradScale() const {
  const double clip = ClipFactor(outputs_.grad_norm, config_.gradient_clipping);
  return static_cast<float>(clip / (plan_.world_size * inputs_.loss_scale));
}

}  // namespace dsat::engine
