// The interpreter of plans.
#include "engine/runtime/executor/executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/runtime/optimizer/optimizer.h"

namespace dsat::engine {
namespace {

using Clock = std::chrono::steady_clock;

double MsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

Executor::Executor(const Model& model, const Plan& plan, const DsConfig& config, UnitStates& states,
                   Redistributor& redistributor, BatchLoader& loader,
                   const Communicators& communicators)
    : model_(model),
      plan_(plan),
      config_(config),
      states_(states),
      redistributor_(redistributor),
      loader_(loader),
      communicators_(communicators),
      updater_(model, plan, states, communicators.data),
      next_(plan.instructions.size()) {
  for (int i = 0; i < plan.num_in_flight; ++i)
    activations_.emplace_back(model.layers.size(), states.memory());
}

void Executor::Begin(const StepInputs& inputs) {
  inputs_ = inputs;
  outputs_ = {};
  next_ = 0;
  live_bytes_.assign(activations_.size(), 0);
}

int Executor::micro_batch() const {
  for (size_t i = AtEnd() ? 0 : next_; i < plan_.instructions.size(); ++i) {
    if (plan_.instructions[i].micro_batch >= 0) return plan_.instructions[i].micro_batch;
  }
  return static_cast<int>(config_.batch.accumulation_steps) - 1;
}

void Executor::Run(const Batch* batch) {
  given_batch_ = batch;
  const Phase phase = NextPhase();
  Kernels& kernels = states_.memory().kernels;
  Clock::time_point before = Clock::now();
  for (; !AtEnd() && NextPhase() == phase; ++next_) {
    const Instruction& instruction = plan_.instructions[next_];
    const int64_t flops_before = kernels.flops();
    around_ ? around_(instruction, [&] { Execute(instruction); }) : Execute(instruction);
    if (on_work_) on_work_();
    const Clock::time_point after = Clock::now();
    const double ms = MsBetween(before, after);
    outputs_.phase_ms[static_cast<size_t>(phase)] += ms;
    if (StageOffset(instruction.op) != 0) outputs_.idle_ms += ms;
    if (instruction.op != Op::kRecompute) outputs_.flops += kernels.flops() - flops_before;
    before = after;
  }
}

// In the order of Op.
void Executor::Execute(const Instruction& i) {
  if (i.op < Op::kReceiveInput) return ExecuteCompute(i);
  if (i.op < Op::kPack) return ExecuteMessage(i);
  if (i.op < Op::kSumTied) return ExecuteMove(i);
  ExecuteStep(i);
}

void Executor::ExecuteCompute(const Instruction& i) {
  Activations& activations = ActivationsOf(i.micro_batch);
  const Arena& arena = states_.memory().device;
  int64_t bytes_before = arena.live_bytes();
  switch (i.op) {
    case Op::kLoadBatch:
      batch_ = loader_.ToDevice(
          given_batch_ != nullptr ? *given_batch_ : loader_.Load(inputs_.step, i.micro_batch));
      return;
    case Op::kForward:
    case Op::kRecompute:
      Forward(i);
      break;
    case Op::kBackward: {
      const std::vector<Tensor> grads = WholeGrads(i.unit);  // Are no activations.
      bytes_before = arena.live_bytes();
      Backward(i, grads);
      break;
    }
    case Op::kDropSaved:
      activations.DropSaved(i.unit);
      break;
    case Op::kDropInput:
      activations.DropInput(i.unit);
      break;
    case Op::kDropGrad:
      activations.DropGrad();
      break;
    case Op::kStoreInput:
      activations.StoreInput(i.unit);
      break;
    case Op::kFetchInput:
      activations.FetchInput(i.unit);
      break;
    default:
      DSAT_CHECK(false, "{}", ToString(i));
  }
  Count(i.micro_batch, arena.live_bytes() - bytes_before);
}

// What is sent is freed. Where messages cross, two micro-batches have memory for a while.
void Executor::ExecuteMessage(const Instruction& i) {
  const bool sends = i.op != Op::kReceiveInput && i.op != Op::kReceiveGrad;
  const bool receives = i.op != Op::kSendOutput && i.op != Op::kSendGrad;
  const int sent_micro_batch = receives ? i.sent_micro_batch : i.micro_batch;
  ProcessGroup& pipeline = *communicators_.pipeline;
  const int peer = pipeline.rank() + StageOffset(i.op);
  const Arena& arena = states_.memory().device;
  const int64_t bytes_before = arena.live_bytes();
  Buffer* received = receives ? &NewReceived(i) : nullptr;
  Buffer* sent = sends ? &SentBy(sent_micro_batch, i) : nullptr;
  const int64_t bytes_between = arena.live_bytes();
  if (sends && receives) {
    pipeline.Exchange(sent->data(), received->data(), received->bytes(), peer);
  } else if (sends) {
    pipeline.Send(sent->data(), sent->bytes(), peer);
  } else {
    pipeline.Recv(received->data(), received->bytes(), peer);
  }
  if (sends) {
    sent->Free();
    Count(sent_micro_batch, arena.live_bytes() - bytes_between);
  }
  Count(i.micro_batch, bytes_between - bytes_before);
}

Buffer& Executor::NewReceived(const Instruction& i) {
  Activations& activations = ActivationsOf(i.micro_batch);
  return StageOffset(i.op) > 0 ? activations.NewGrad(communicators_.output_bytes)
                               : activations.NewInput(i.unit, communicators_.input_bytes);
}

Buffer& Executor::SentBy(int micro_batch, const Instruction& i) {
  Activations& activations = ActivationsOf(micro_batch);
  return StageOffset(i.op) > 0 ? activations.Output(i.unit) : activations.Grad();
}

void Executor::Count(int micro_batch, int64_t bytes) {
  int64_t& live_bytes = live_bytes_[InFlight(micro_batch)];
  live_bytes += bytes;
  outputs_.activation_bytes = std::max(outputs_.activation_bytes, live_bytes);
}

void Executor::ExecuteMove(const Instruction& i) {
  SwapFile* slices = states_.slice_swap();
  switch (i.op) {
    case Op::kPack:
      return redistributor_.Pack(plan_.transfers[i.transfer], i.unit);
    case Op::kStart:
      return redistributor_.Start(plan_.transfers[i.transfer]);
    case Op::kWait:
      return redistributor_.Wait(plan_.transfers[i.transfer]);
    case Op::kFreeParam:
      return states_.unit(i.unit).gathered.Free();
    case Op::kReadSlice:
      return slices->Read(i.unit);
    case Op::kWriteSlice:
      if (!outputs_.skipped) slices->Write(i.unit);
      return;
    case Op::kAwaitSlice:
      return slices->Await(i.unit);
    case Op::kFreeSlice:
      return slices->Free(i.unit);
    case Op::kFoldGrad:
      return states_.FoldGrad(i.unit);
    case Op::kFreeGrad:
      return states_.FreeWholeGrad(i.unit);
    default:
      DSAT_CHECK(false, "{}", ToString(i));
  }
}

// A skipped step touches no state.
void Executor::ExecuteStep(const Instruction& i) {
  SwapFile* swap = states_.state_swap();
  switch (i.op) {
    case Op::kSumTied:
      return communicators_.tied->Sum(states_.ReducedGrad(i.unit), plan_.units[i.unit].GradTier(),
                                      states_.memory().kernels);
    case Op::kNorm:
      return Norm();
    case Op::kTrustRatios:
      if (!outputs_.skipped) updater_.TrustRatios();
      return;
    case Op::kAverageMomentum:
      if (!outputs_.skipped) updater_.AverageMomentum(i.sub_group);
      return;
    case Op::kReadState:
      if (!outputs_.skipped) swap->Read(i.sub_group);
      return;
    case Op::kUpdate:
      return Update(i.sub_group);
    case Op::kWriteState:
      if (!outputs_.skipped) swap->Write(i.sub_group);
      return;
    case Op::kAwaitState:
      if (!outputs_.skipped) swap->Await(i.sub_group);
      return;
    case Op::kMeanLoss:
      return MeanLoss();
    default:
      DSAT_CHECK(false, "{}", ToString(i));
  }
}

LayerContext Executor::Context(const std::vector<Tensor>& params,
                               const std::vector<Tensor>& grads) {
  const Memory& memory = states_.memory();
  return {.kernels = memory.kernels,
          .arena = memory.device,
          .dtype = states_.dtype(),
          .batch = batch_,
          .params = params,
          .grads = grads,
          .loss_grad_scale = static_cast<float>(
              inputs_.loss_scale / static_cast<double>(config_.batch.accumulation_steps)),
          .keeps_outputs = config_.activation.keeps_outputs,
          .loss = &micro_batch_loss_,
          .logits = logits_};
}

void Executor::Forward(const Instruction& i) {
  const int64_t flops_before = states_.memory().kernels.flops();
  const std::vector<Tensor> params = states_.LayerParams(i.unit);
  micro_batch_loss_ = 0;
  ActivationsOf(i.micro_batch).Forward(*model_.layers[i.unit], i.unit, Context(params, {}));
  if (i.op == Op::kRecompute) return;
  outputs_.loss += micro_batch_loss_;
  outputs_.forward_flops += states_.memory().kernels.flops() - flops_before;
}

std::vector<Tensor> Executor::WholeGrads(int unit) {
  return plan_.units[unit].writes_grads ? states_.LayerGrads(unit) : std::vector<Tensor>();
}

void Executor::Backward(const Instruction& i, const std::vector<Tensor>& grads) {
  const std::vector<Tensor> params = states_.LayerParams(i.unit);
  ActivationsOf(i.micro_batch).Backward(*model_.layers[i.unit], i.unit, Context(params, grads));
}

void Executor::Norm() {
  double sum = updater_.SumOfSquares();
  const bool shard = plan_.optimizer_home == Placement::kShard;
  if (shard) {
    sum = communicators_.world.SumScalar(sum);
  } else if (communicators_.pipeline != nullptr) {
    sum = communicators_.pipeline->SumScalar(sum);
  }
  // Nobody has the whole gradient: the root of the mean square of the ranks' norms.
  if (!plan_.reduces_grads) sum = communicators_.data.SumScalar(sum) / plan_.world_size;
  outputs_.grad_norm = std::sqrt(sum) * MeanFactor();
  outputs_.skipped = config_.check_grad_overflow && !std::isfinite(outputs_.grad_norm);
  if (outputs_.skipped) return;
  const double max_norm = plan_.reduces_grads ? config_.gradient_clipping : 0;
  const double clip = ClipFactor(outputs_.grad_norm, max_norm);
  updater_.Begin({.optimizer = inputs_.optimizer,
                  .step = inputs_.update,
                  .grad_scale = static_cast<float>(clip * MeanFactor())});
}

double Executor::MeanFactor() const {
  if (!plan_.reduces_grads) return 1 / inputs_.loss_scale;
  const int num_addends = config_.average_gradients ? plan_.world_size : 1;
  return config_.predivision(plan_.world_size) / num_addends / inputs_.loss_scale;
}

// Gradients are sums over the ranks, of a scaled loss, until here: averaging, unscaling and
// clipping are one factor.
void Executor::Update(int sub_group) {
  const SubGroup& group = plan_.sub_groups[sub_group];
  if (!outputs_.skipped) updater_.Update(sub_group);
  const bool unit_ends = sub_group + 1 == std::ssize(plan_.sub_groups) ||
                         plan_.sub_groups[sub_group + 1].unit != group.unit;
  if (unit_ends) states_.FreeGrads(group.unit);
}

void Executor::MeanLoss() {
  const double mean = outputs_.loss / static_cast<double>(config_.batch.accumulation_steps);
  outputs_.loss = communicators_.world.SumScalar(mean) / plan_.world_size;
}

}  // namespace dsat::engine
