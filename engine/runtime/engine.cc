// The training engine.
#include "engine/runtime/engine.h"

#include <algorithm>

#include "engine/runtime/checkpoint/checkpoint.h"
#include "engine/runtime/checkpoint/save_16bit_model.h"
#include "engine/runtime/optimizer/lr_schedule.h"
#include "engine/runtime/optimizer/optimizer.h"

namespace dsat::engine {
namespace {

StateOptions StatesFor(const DsConfig& config, uint64_t seed) {
  return {.dtype = config.dtype(),
          .grad_dtype = config.grad_dtype(),
          .master_dtype = config.master_dtype(),
          .moment_dtype = config.moment_dtype(),
          .num_moments = NumMoments(config.optimizer),
          .seed = seed,
          .optimizer_swap = {config.zero.offload_optimizer.nvme_path, config.aio},
          .param_swap = {config.zero.offload_param.nvme_path, config.aio}};
}

std::vector<int64_t> UnitSizes(const UnitStates& states) {
  std::vector<int64_t> sizes;
  for (int u = 0; u < states.num_units(); ++u)
    sizes.push_back(states.unit(u).layout.num_elems);
  return sizes;
}

// Whether the device does something for the instruction, on the stream of the thread that runs it.
bool AsksDevice(const Instruction& i, const Plan& plan) {
  const auto on_device = [&](const SubGroup& g) {
    return plan.units[g.unit].GradTier() == Tier::kDevice;
  };
  switch (i.op) {
    case Op::kLoadBatch:
    case Op::kForward:
    case Op::kRecompute:
    case Op::kBackward:
    case Op::kStoreInput:
    case Op::kFetchInput:
    case Op::kReceiveInput:
    case Op::kSendOutput:
    case Op::kReceiveGrad:
    case Op::kSendGrad:
    case Op::kSendOutputReceiveGrad:
    case Op::kSendGradReceiveInput:
    case Op::kPack:
    case Op::kWait:
    case Op::kFoldGrad:
    case Op::kSumTied:
      return true;
    case Op::kNorm:
      return std::ranges::any_of(plan.sub_groups, on_device);
    case Op::kUpdate:
      return on_device(plan.sub_groups[i.sub_group]);
    default:
      return false;
  }
}

}  // namespace

Engine::Engine(const Resources& resources, const DsConfig& config, uint64_t seed)
    : resources_(resources),
      config_(config),
      groups_(resources.group, config.pipeline.num_stages),
      plan_(PlanFor(resources.model, config, resources.group.size(), groups_.stage())),
      states_(resources.model, plan_, StatesFor(config, seed), groups_.data().rank(),
              resources.memory),
      loader_(resources.dataset, resources.memory.device, resources.memory.kernels, config.batch,
              resources.seq_len, groups_.data().rank(), groups_.data().size(),
              resources.model.image),
      redistributor_(plan_, states_, groups_.data(),
                     config.communication_dtype(groups_.data().size()),
                     config.predivision(groups_.data().size())),
      executor_(resources.model, plan_, config_, states_, redistributor_, loader_,
                MakeNeighbours()),
      loss_scaler_(config.fp16) {
  if (!IsOneBit(config.optimizer)) return;
  unreduced_plan_ = UnreducedPlanFor(resources.model, config, resources.group.size());
  unreduced_executor_.emplace(resources.model, *unreduced_plan_, config_, states_, redistributor_,
                              loader_, executor_.neighbours());
}

Neighbours Engine::MakeNeighbours() {
  Neighbours neighbours{.world = groups_.world(), .data = groups_.data()};
  if (groups_.num_stages() == 1) return neighbours;
  tied_.emplace(plan_, UnitSizes(states_), config_.grad_dtype(), groups_, resources_.memory.device);
  const Batch batch = {.B = config_.batch.micro_batch_size, .T = resources_.seq_len};
  const std::vector<int64_t> bytes = InputBytes(resources_.model, batch, config_.dtype());
  neighbours.pipeline = &groups_.pipeline();
  neighbours.tied = &*tied_;
  neighbours.input_bytes = bytes[plan_.first_unit];
  neighbours.output_bytes = bytes[plan_.end_unit];
  return neighbours;
}

double Engine::lr() const {
  if (lr_ && config_.scheduler.type.empty()) return *lr_;
  return LearningRate(config_.optimizer, config_.scheduler, num_steps_ - num_skipped_steps_);
}

StepInputs Engine::NextInputs() const {
  const int64_t num_updates = num_steps_ - num_skipped_steps_;
  StepInputs inputs;
  inputs.step = num_steps_;
  inputs.update = num_updates + 1;
  inputs.optimizer = ScheduledSettings(config_.optimizer, config_.scheduler, num_updates);
  inputs.optimizer.lr = lr();
  inputs.loss_scale = loss_scaler_.Scale();
  return inputs;
}

void Engine::BeginStep() {
  step_start_ = std::chrono::steady_clock::now();
  const int64_t num_updates = num_steps_ - num_skipped_steps_;
  const bool frozen = unreduced_executor_ && num_updates >= config_.optimizer.freeze_step;
  current_ = frozen ? &*unreduced_executor_ : &executor_;
  current_->Begin(NextInputs());
  awaits_step_ = false;
}

StepResult Engine::TrainBatch() {
  BeginStep();
  while (!current_->AtEnd())
    current_->Run();
  return EndStep();
}

StepResult Engine::EndStep() {
  const StepOutputs& outputs = current_->outputs();
  StepResult result;
  result.lr = lr();
  result.loss_scale = loss_scaler_.Scale();
  ++num_steps_;
  num_skipped_steps_ += outputs.skipped ? 1 : 0;
  loss_scaler_.Update(outputs.skipped);
  result.loss = outputs.loss;
  result.grad_norm = outputs.grad_norm;
  result.skipped = outputs.skipped;
  result.forward_ms = outputs.phase_ms[static_cast<size_t>(Phase::kForward)];
  result.backward_ms = outputs.phase_ms[static_cast<size_t>(Phase::kBackward)];
  result.step_ms = outputs.phase_ms[static_cast<size_t>(Phase::kStep)];
  result.idle_ms = outputs.idle_ms;
  result.forward_flops = outputs.forward_flops;
  result.flops = outputs.flops;
  result.activation_bytes = outputs.activation_bytes;
  const auto end = std::chrono::steady_clock::now();
  result.latency_ms = std::chrono::duration<double, std::milli>(end - step_start_).count();
  if (trace_ != nullptr) {
    trace_->Add({.lane = Trace::kSteps,
                 .name = "step",
                 .begin = step_start_,
                 .end = end,
                 .step = num_steps_});
  }
  return result;
}

// Who is told of the instructions of `executor`: the trace, if there is one.
void Engine::Watch(Executor& executor, const Plan& plan) {
  if (trace_ == nullptr) return executor.set_around(nullptr);
  executor.set_around([this, &plan](const Instruction& i, const auto& run) {
    Kernels& kernels = resources_.memory.kernels;
    const TraceSpan span(trace_, EventOf(i, plan), AsksDevice(i, plan) ? &kernels : nullptr);
    run();
  });
}

TraceEvent Engine::EventOf(const Instruction& i, const Plan& plan) const {
  TraceEvent event = {.lane = Trace::kCompute,
                      .name = Name(i.op),
                      .phase = Name(i.phase),
                      .micro_batch = i.micro_batch,
                      .unit = i.unit,
                      .sub_group = i.sub_group};
  if (i.transfer >= 0) {
    event.about = ToString(plan.transfers[i.transfer], i.transfer);
  } else if (i.unit >= 0) {
    event.about = resources_.model.layers[i.unit]->name();
  }
  const Neighbours& neighbours = executor_.neighbours();
  if (NeighbourOf(i.op) < 0) event.bytes = neighbours.input_bytes;
  if (NeighbourOf(i.op) > 0) event.bytes = neighbours.output_bytes;
  return event;
}

void Engine::set_trace(Trace* trace) {
  trace_ = trace;
  Watch(executor_, plan_);
  if (unreduced_executor_) Watch(*unreduced_executor_, *unreduced_plan_);
  states_.set_trace(trace);
  redistributor_.set_trace(trace);
  const Memory& memory = resources_.memory;
  for (Kernels* kernels : {&memory.kernels, &memory.host_kernels})
    kernels->set_trace(trace);
}

void Engine::RequirePhase(Phase phase, const char* call) const {
  constexpr const char* kCalls[] = {"Forward", "Backward", "Step"};
  if (groups_.num_stages() > 1) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}: the engine has {} pipeline stages; expected TrainBatch or Evaluate", call,
          groups_.num_stages());
  }
  const Phase next = current_->AtEnd() ? Phase::kForward : current_->NextPhase();
  if (next == phase) return;
  Throw(ErrorCode::kFailedPrecondition, "{}: called out of turn; expected {}", call,
        kCalls[static_cast<size_t>(next)]);
}

double Engine::Forward(const Batch& batch) {
  RequirePhase(Phase::kForward, "Forward");
  if (current_->AtEnd()) BeginStep();
  awaits_step_ = false;
  current_->Run(&batch);
  return current_->micro_batch_loss();
}

const Batch& Engine::NextBatch() {
  RequirePhase(Phase::kForward, "NextBatch");
  if (resources_.dataset == nullptr) {
    Throw(ErrorCode::kFailedPrecondition,
          "NextBatch: the engine has no data set; give it one, or Forward batches of your own");
  }
  return loader_.Load(num_steps_, current_->micro_batch());
}

void Engine::Backward() {
  RequirePhase(Phase::kBackward, "Backward");
  current_->Run();
  awaits_step_ = true;
}

std::optional<StepResult> Engine::Step() {
  const bool between = !current_->AtEnd() && current_->NextPhase() == Phase::kForward;
  RequirePhase(between ? Phase::kForward : Phase::kStep, "Step");
  awaits_step_ = false;
  if (between) return std::nullopt;
  current_->Run();
  return EndStep();
}

bool Engine::IsGradientAccumulationBoundary() const {
  if (awaits_step_) return current_->NextPhase() == Phase::kStep;
  return current_->micro_batch() + 1 == config_.batch.accumulation_steps;
}

double Engine::Evaluate(const Dataset& data, int64_t num_batches) {
  if (num_batches < 1) {
    Throw(ErrorCode::kInvalidArgument, "evaluation over {} batches; expected at least 1",
          num_batches);
  }
  const int64_t num_samples = data.NumSamples(resources_.seq_len);
  if (num_batches > num_samples / config_.batch.train_batch_size) {
    Throw(ErrorCode::kInvalidArgument,
          "evaluation over {} batches of {}; expected at most the data's {} samples", num_batches,
          config_.batch.train_batch_size, num_samples);
  }
  const Plan plan = EvaluationPlanFor(resources_.model, config_, resources_.group.size(),
                                      groups_.stage(), config_.batch.accumulation_steps);
  const Memory& memory = resources_.memory;
  BatchLoader loader(&data, memory.device, memory.kernels, config_.batch, resources_.seq_len,
                     groups_.data().rank(), groups_.data().size(), resources_.model.image);
  Executor executor(resources_.model, plan, config_, states_, redistributor_, loader,
                    executor_.neighbours());
  Watch(executor, plan);
  double sum = 0;
  for (int64_t i = 0; i < num_batches; ++i) {
    StepInputs inputs;
    inputs.step = i;
    executor.Begin(inputs);
    while (!executor.AtEnd())
      executor.Run();
    sum += executor.outputs().loss;
  }
  return sum / static_cast<double>(num_batches);
}

std::vector<float> Engine::Predict(const Batch& batch) {
  if (groups_.num_stages() > 1) {
    Throw(ErrorCode::kUnimplemented, "prediction in {} pipeline stages; expected one",
          groups_.num_stages());
  }
  const Memory& memory = resources_.memory;
  const Plan plan = EvaluationPlanFor(resources_.model, config_, resources_.group.size(), 0, 1);
  const int64_t num_classes = resources_.model.vocab_size;
  Buffer buffer = memory.device.Allocate(DType::kF32, batch.B * num_classes, "logits");
  const Tensor logits = buffer.AsTensor(DType::kF32).Slice(0, batch.B * num_classes);
  BatchLoader loader(nullptr, memory.device, memory.kernels, {.micro_batch_size = batch.B}, batch.T,
                     0, 1, resources_.model.image);
  Executor executor(resources_.model, plan, config_, states_, redistributor_, loader,
                    executor_.neighbours());
  executor.PredictInto(logits);
  executor.Begin({});
  while (!executor.AtEnd())
    executor.Run(&batch);
  std::vector<float> values(static_cast<size_t>(logits.num_elems));
  memory.kernels.Download(values.data(), logits.data, logits.bytes());
  return values;
}

Traffic Engine::traffic() const {
  Traffic sum = groups_.traffic();
  if (tied_) sum += tied_->traffic();
  return sum;
}

AioTraffic Engine::disk_traffic() const {
  return states_.disk_traffic();
}

void Engine::SaveCheckpoint(const std::string& dir, const std::string& tag,
                            const Json& client_state) {
  const CheckpointNotes notes = {{{"num_steps", num_steps_},
                                  {"num_skipped_steps", num_skipped_steps_},
                                  {"loss_scaler", ToJson(loss_scaler_.state())}},
                                 client_state};
  engine::SaveCheckpoint(dir, tag.empty() ? fmt::format("global_step{}", num_steps_) : tag,
                         resources_.model, states_, notes, resources_.group);
}

Json Engine::LoadCheckpoint(const std::string& dir, const std::string& tag) {
  CheckpointNotes notes =
      engine::LoadCheckpoint(dir, tag, resources_.model, states_, resources_.group);
  num_steps_ = notes.engine.at("num_steps");
  num_skipped_steps_ = notes.engine.at("num_skipped_steps");
  loss_scaler_.Restore(LossScalerStateFrom(notes.engine.at("loss_scaler")));
  return std::move(notes.client_state);
}

bool Engine::Save16BitModel(const std::string& dir, const std::string& name, bool exclude_frozen) {
  const bool sharded = ZeroStageHomes(config_.zero.stage).param.placement == Placement::kShard;
  if (sharded && !config_.zero.gather_16bit_weights_on_model_save) return false;
  engine::Save16BitModel(dir, name, exclude_frozen, resources_.model, states_,
                         groups_.data().size(), resources_.group);
  return true;
}

}  // namespace dsat::engine
