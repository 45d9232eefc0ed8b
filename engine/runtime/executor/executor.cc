// The interpreter of plans.
#include "engine/runtime/executor/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace dsat::engine {
namespace {

// By Phase.
constexpr double StepResult::*kPhaseMs[] = {&StepResult::forward_ms, &StepResult::backward_ms,
                                            &StepResult::step_ms};

// The group whose sums of squares make the norm; nullptr: every rank has the whole gradient.
ProcessGroup* NormGroup(const Plan& plan, const Groups& groups) {
  if (plan.optimizer_home == Placement::kShard) return &groups.world();
  if (!plan.reduces_grads) return &groups.data();
  return groups.num_stages() > 1 ? &groups.pipeline() : nullptr;
}

// Whole numbers of elements of any type are whole numbers of these.
constexpr DType kAny = DType::kBF16;

void StoreInput(Buffer& input, Buffer& on_host, const Memory& memory) {
  on_host = memory.host.Allocate(input.bytes(), "activation checkpoints");
  memory.kernels.stream().CopyToHost(on_host.AsTensor(kAny), input.AsTensor(kAny));
  input.Free();
}

void FetchInput(Buffer& input, Buffer& on_host, const Memory& memory) {
  input = memory.device.Allocate(on_host.bytes(), "activation checkpoint");
  memory.kernels.stream().CopyToDevice(input.AsTensor(kAny), on_host.AsTensor(kAny));
  on_host.Free();
}

}  // namespace

Executor::Executor(const Model& model, const Plan& plan, const DsConfig& config, UnitStates& states,
                   Redistributor& redistributor, BatchLoader& loader, const Groups& groups,
                   TiedUnits& tied, const Observers& observers)
    : model_(model),
      plan_(plan),
      config_(config),
      states_(states),
      redistributor_(redistributor),
      loader_(loader),
      groups_(groups),
      tied_(tied),
      observers_(observers),
      updater_(model, plan, states, groups.data()),
      next_(plan.instructions.size()),
      losses_(static_cast<size_t>(config.batch.accumulation_steps)),
      num_counted_(losses_.size()) {
  if (groups.num_stages() > 1) {
    const std::vector<int64_t> bytes = InputBytes(model, loader.batch(), config.dtype());
    input_bytes_ = bytes[plan.first_unit];
    output_bytes_ = bytes[plan.end_unit];
  }
  const auto is_norm = [](const Instruction& i) { return i.op == Op::kNorm; };
  if (std::ranges::any_of(plan.instructions, is_norm))
    grad_norm_.emplace(plan, states, NormGroup(plan, groups));
  const Memory& memory = states.memory();
  const auto bytes = static_cast<int64_t>(sizeof(StepScale) + losses_.size() * sizeof(double));
  numbers_ = memory.device.Allocate(bytes, "numbers of a step");
  // On other stages than the last, nobody writes a loss.
  memory.kernels.Run(op::Fill{numbers_.AsTensor(DType::kF32), 0});
  for (int i = 0; i < plan.num_in_flight; ++i)
    activations_.emplace_back(model.layers.size());
}

void Executor::Begin(const StepInputs& inputs) {
  inputs_ = inputs;
  result_ = {};
  result_.lr = inputs.optimizer.lr;
  result_.loss_scale = inputs.loss_scale;
  spans_.clear();
  messages_.clear();
  next_ = 0;
  for (Activations& activations : activations_)
    activations.live_bytes = 0;
}

int Executor::micro_batch() const {
  for (size_t i = AtEnd() ? 0 : next_; i < plan_.instructions.size(); ++i) {
    if (plan_.instructions[i].micro_batch >= 0) return plan_.instructions[i].micro_batch;
  }
  return static_cast<int>(config_.batch.accumulation_steps) - 1;
}

void Executor::RunToEnd(const Batch* batch) {
  while (!AtEnd())
    Run(batch);
}

void Executor::Run(const Batch* batch) {
  given_batch_ = batch;
  const Phase phase = NextPhase();
  Kernels& kernels = states_.memory().kernels;
  spans_.push_back({phase, kernels.stream().RecordTime(), nullptr});
  for (; !AtEnd() && NextPhase() == phase; ++next_) {
    const Instruction& instruction = plan_.instructions[next_];
    const int64_t flops_before = kernels.flops();
    const bool is_message = StageOffset(instruction.op) != 0;
    if (is_message) messages_.emplace_back(kernels.stream().RecordTime(), nullptr);
    Execute(instruction);
    if (is_message) messages_.back().second = kernels.stream().RecordTime();
    if (observers_.on_done) observers_.on_done(instruction);
    if (instruction.op != Op::kRecompute) result_.flops += kernels.flops() - flops_before;
  }
  if (!AtEnd()) {
    spans_.back().end = kernels.stream().RecordTime();
    return;
  }
  for (const auto& [its_phase, begin, end] : spans_)
    result_.*kPhaseMs[static_cast<size_t>(its_phase)] += kernels.stream().MsBetween(begin, end);
  for (const auto& [begin, end] : messages_)
    result_.idle_ms += kernels.stream().MsBetween(begin, end);
}

TraceEvent Executor::EventOf(const Instruction& i) const {
  TraceEvent event = {.lane = Trace::kCompute,
                      .name = Name(i.op),
                      .phase = Name(i.phase),
                      .micro_batch = i.micro_batch,
                      .unit = i.unit,
                      .sub_group = i.sub_group};
  if (i.transfer >= 0) {
    event.about = fmt::format("t{}: {}", i.transfer, ToString(plan_.transfers[i.transfer]));
  } else if (i.unit >= 0) {
    event.about = model_.layers[i.unit]->name();
  }
  if (StageOffset(i.op) < 0) event.bytes = input_bytes_;
  if (StageOffset(i.op) > 0) event.bytes = output_bytes_;
  return event;
}

// In the order of Op.
void Executor::Execute(const Instruction& i) {
  Trace* const trace = observers_.trace;
  Stream& stream = states_.memory().kernels.stream();
  const TraceSpan span(trace, trace != nullptr ? EventOf(i) : TraceEvent{},
                       AsksDevice(i, plan_) ? &stream : nullptr);
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
      batch_ = loader_.ToDevice(given_batch_ != nullptr
                                    ? *given_batch_
                                    : loader_.Load(inputs_.first_sample, i.micro_batch));
      return;
    case Op::kForward:
    case Op::kRecompute:
      Forward(i);
      break;
    case Op::kBackward: {
      // Whole gradients are no activations. A unit that writes none has none.
      const std::vector<Tensor> grads =
          plan_.units[i.unit].writes_grads ? states_.LayerGrads(i.unit) : std::vector<Tensor>();
      bytes_before = arena.live_bytes();
      Backward(i, grads);
      break;
    }
    case Op::kDropSaved:
      activations.saved[i.unit].clear();
      break;
    case Op::kDropInput:
      activations.inputs[i.unit].Free();
      break;
    case Op::kDropGrad:
      activations.grad.Free();
      break;
    case Op::kStoreInput:
      StoreInput(activations.inputs[i.unit], activations.inputs_on_host[i.unit], states_.memory());
      break;
    case Op::kFetchInput:
      FetchInput(activations.inputs[i.unit], activations.inputs_on_host[i.unit], states_.memory());
      break;
    default:
      DSAT_CHECK(false, "{}", ToString(i));
  }
  Count(i.micro_batch, arena.live_bytes() - bytes_before);
}

// Frees what it has sent. Where messages cross, two micro-batches have memory for a while.
void Executor::ExecuteMessage(const Instruction& i) {
  const bool sends = i.op != Op::kReceiveInput && i.op != Op::kReceiveGrad;
  const bool receives = i.op != Op::kSendOutput && i.op != Op::kSendGrad;
  const int sent_micro_batch = receives ? i.sent_micro_batch : i.micro_batch;
  ProcessGroup& pipeline = groups_.pipeline();
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
  Arena& arena = states_.memory().device;
  Activations& activations = ActivationsOf(i.micro_batch);
  if (StageOffset(i.op) > 0) {
    return activations.grad = arena.Allocate(output_bytes_, "gradient from the stage after");
  }
  return activations.inputs[i.unit] = arena.Allocate(input_bytes_, "input from the stage before");
}

Buffer& Executor::SentBy(int micro_batch, const Instruction& i) {
  Activations& activations = ActivationsOf(micro_batch);
  return StageOffset(i.op) > 0 ? activations.inputs[i.unit + 1] : activations.grad;
}

void Executor::Count(int micro_batch, int64_t bytes) {
  int64_t& live_bytes = ActivationsOf(micro_batch).live_bytes;
  live_bytes += bytes;
  result_.activation_bytes = std::max(result_.activation_bytes, live_bytes);
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
      if (!result_.skipped) slices->Write(i.unit);
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
      return tied_.Sum(states_.ReducedGrad(i.unit), plan_.units[i.unit].reduced_grad_tier(),
                       states_.memory().kernels);
    case Op::kNorm:
      return Norm();
    case Op::kTrustRatios:
      if (!result_.skipped) updater_.TrustRatios();
      return;
    case Op::kAverageMomentum:
      if (!result_.skipped) updater_.AverageMomentum(i.sub_group);
      return;
    case Op::kReadState:
      if (!result_.skipped) swap->Read(i.sub_group);
      return;
    case Op::kUpdate:
      return Update(i.sub_group);
    case Op::kWriteState:
      if (!result_.skipped) swap->Write(i.sub_group);
      return;
    case Op::kAwaitState:
      if (!result_.skipped) swap->Await(i.sub_group);
      return;
    case Op::kMeanLoss:
      return MeanLoss();
    default:
      DSAT_CHECK(false, "{}", ToString(i));
  }
}

LayerContext Executor::Context(int micro_batch, const std::vector<Tensor>& params,
                               const std::vector<Tensor>& grads) {
  const Memory& memory = states_.memory();
  return {.kernels = memory.kernels,
          .arena = memory.device,
          .dtype = states_.dtype(),
          .batch = batch_,
          .params = params,
          .grads = grads,
          .loss_grad_scale = LossGradScale(),
          .keeps_outputs = config_.activation.keeps_outputs,
          .loss = DeviceLoss(micro_batch),
          .logits = logits_,
          .left_logits = left_logits_ == nullptr ? nullptr : &logits_view_};
}

float Executor::LossGradScale() const {
  return static_cast<float>(inputs_.loss_scale /
                            static_cast<double>(config_.batch.accumulation_steps));
}

void Executor::Forward(const Instruction& i) {
  const int64_t flops_before = states_.memory().kernels.flops();
  const std::vector<Tensor> params = states_.LayerParams(i.unit);
  Activations& activations = ActivationsOf(i.micro_batch);
  activations.inputs[i.unit + 1] = model_.layers[i.unit]->Forward(
      Context(i.micro_batch, params, {}), activations.inputs[i.unit], activations.saved[i.unit]);
  if (i.op == Op::kRecompute) return;
  last_forward_ = i.micro_batch;
  if (i.unit + 1 == std::ssize(model_.layers)) {
    num_counted_[i.micro_batch] = static_cast<double>(batch_.B * batch_.T - batch_.num_ignored);
    if (left_logits_ != nullptr) ReadLogits();
  }
  result_.forward_flops += states_.memory().kernels.flops() - flops_before;
}

void Executor::ReadLogits() {
  const auto& [logits, classes, stride] = logits_view_;
  if (stride == 0)
    Throw(ErrorCode::kUnimplemented, "the model's last layer does not say where its logits are");
  std::vector<char> bytes(static_cast<size_t>(logits.bytes()));
  states_.memory().kernels.stream().Download(bytes.data(), logits.data, logits.bytes());
  const Tensor padded = {bytes.data(), logits.num_elems, logits.dtype};
  left_logits_->resize(static_cast<size_t>(logits_view_.NumRows() * classes));
  float* to = left_logits_->data();
  for (int64_t at = 0; at < padded.num_elems; at += stride, to += classes) {
    states_.memory().host_kernels.Run(
        op::Cast{{to, classes, DType::kF32}, padded.Slice(at, classes)});
  }
}

void Executor::TakeLoss(std::span<const float> logits_grad, double loss) {
  const auto& [logits, classes, stride] = logits_view_;
  if (std::ssize(logits_grad) != logits_view_.NumRows() * classes) {
    Throw(ErrorCode::kInvalidArgument,
          "Backward: a gradient of {} numbers; expected {} x {}, one for each logit",
          logits_grad.size(), logits_view_.NumRows(), classes);
  }
  std::vector<char> bytes(static_cast<size_t>(logits.bytes()));  // The padding's gradient is 0.
  const Tensor padded = {bytes.data(), logits.num_elems, logits.dtype};
  std::vector<float> row(static_cast<size_t>(classes));
  const float* from = logits_grad.data();
  for (int64_t at = 0; at < padded.num_elems; at += stride, from += classes) {
    std::transform(from, from + classes, row.begin(),
                   [scale = LossGradScale()](float grad) { return grad * scale; });
    states_.memory().host_kernels.Run(
        op::Cast{padded.Slice(at, classes), {row.data(), classes, DType::kF32}});
  }
  Stream& stream = states_.memory().kernels.stream();
  stream.Upload(logits.data, bytes.data(), logits.bytes());
  stream.Upload(DeviceLoss(last_forward_), &loss, sizeof(loss));
}

void Executor::Backward(const Instruction& i, const std::vector<Tensor>& grads) {
  const std::vector<Tensor> params = states_.LayerParams(i.unit);
  Activations& activations = ActivationsOf(i.micro_batch);
  Buffer& input = activations.inputs[i.unit];
  Saved& saved = activations.saved[i.unit];
  activations.grad = model_.layers[i.unit]->Backward(Context(i.micro_batch, params, grads), input,
                                                     std::move(activations.grad), saved);
  input.Free();
  saved.clear();
}

double* Executor::DeviceLoss(int micro_batch) const {
  if (numbers_.data() == nullptr) return nullptr;
  return reinterpret_cast<double*>(DeviceScale() + 1) + micro_batch;
}

void Executor::ReadNumbers() {
  std::vector<char> bytes(sizeof(StepScale) + losses_.size() * sizeof(double));
  states_.memory().kernels.stream().Download(bytes.data(), numbers_.data(), std::ssize(bytes));
  std::memcpy(&scale_, bytes.data(), sizeof(StepScale));
  std::memcpy(losses_.data(), &bytes[sizeof(StepScale)], bytes.size() - sizeof(StepScale));
  result_.grad_norm = scale_.grad_norm;
  result_.skipped = scale_.skips != 0;
}

double Executor::MicroBatchLoss() {
  double loss = 0;
  states_.memory().kernels.stream().Download(&loss, DeviceLoss(last_forward_), sizeof(loss));
  return loss;
}

std::pair<double, double> Executor::SumOfLosses() const {
  return {std::inner_product(losses_.begin(), losses_.end(), num_counted_.begin(), 0.0),
          std::accumulate(num_counted_.begin(), num_counted_.end(), 0.0)};
}

// Without reduced gradients nobody has the whole of them: the norm is the root of the mean square
// of the ranks' norms, and nothing is clipped.
void Executor::Norm() {
  const bool reduces = plan_.reduces_grads;
  grad_norm_->Find(DeviceScale(), {.mean_factor = MeanFactor(),
                                   .divisor = reduces ? 1.0 : plan_.world_size,
                                   .max_norm = reduces ? config_.gradient_clipping : 0,
                                   .skips_overflow = config_.check_grad_overflow});
  if (updater_.host_needs_scale()) ReadNumbers();
  updater_.Begin({.optimizer = inputs_.optimizer,
                  .step = inputs_.update,
                  .scales = {.device = DeviceScale(), .host = &scale_}});
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
  if (!result_.skipped) updater_.Update(sub_group);
  const bool unit_ends = sub_group + 1 == std::ssize(plan_.sub_groups) ||
                         plan_.sub_groups[sub_group + 1].unit != group.unit;
  if (unit_ends) states_.FreeGrads(group.unit);
}

// The only time that the host waits for the device in a step that leaves it no other work.
void Executor::MeanLoss() {
  spans_.back().end = states_.memory().kernels.stream().RecordTime();
  ReadNumbers();
  const double sum = std::accumulate(losses_.begin(), losses_.end(), 0.0);
  const double mean = sum / static_cast<double>(config_.batch.accumulation_steps);
  result_.loss = groups_.world().SumScalar(mean) / plan_.world_size;
}

}  // namespace dsat::engine
