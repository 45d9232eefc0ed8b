// The training engine.
#include "engine/runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "engine/backend/stream.h"
#include "engine/core/buffer_plan.h"
#include "engine/core/trace.h"
#include "engine/data/model_fit.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/runtime/checkpoint/checkpoint.h"
#include "engine/runtime/engine_internals.h"
#include "engine/runtime/executor/batch_loader.h"
#include "engine/runtime/executor/executor.h"
#include "engine/runtime/executor/pipeline.h"
#include "engine/runtime/optimizer/loss_scaler.h"
#include "engine/runtime/optimizer/lr_schedule.h"
#include "engine/runtime/optimizer/optimizer.h"
#include "engine/runtime/plan_for.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/state/redistribute.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {
namespace {

StateOptions StatesFor(const DsConfig& config, uint64_t seed) {
  return {.dtype = config.dtype(),
          .grad_dtype = config.grad_dtype(),
          .master_dtype = config.master_dtype(),
          .moment_dtype = config.moment_dtype(),
          .num_moments = NumMoments(config.optimizer),
          .seed = seed,
          .optimizer_swap = {config.zero.offload_optimizer.nvme_path, config.aio, "optimizer"},
          .param_swap = {config.zero.offload_param.nvme_path, config.aio, "param"}};
}

// On a GPU, memory is reserved before the first buffer is allocated, and the buffers lie where two
// steps on the counting backend ask for them.
const Resources& WithPlannedBuffers(const Resources& resources, const DsConfig& config) {
  Arena& device = resources.memory.device;
  if (!device.WantsPlan()) return resources;
  CountingResources counting(resources.group.rank(), resources.group.size(), /*num_threads=*/1,
                             DeviceKind::kCuda);
  Engine engine(counting.For(resources.model, resources.seq_len), config, 0);
  engine.TrainBatch();
  engine.TrainBatch();
  device.BeginRun(counting.device.PlanRequests());
  return resources;
}

}  // namespace

class Engine::Parts {
 public:
  Parts(const Resources& given_resources, const DsConfig& given_config, uint64_t seed);

  int64_t num_updates() const { return num_steps - num_skipped_steps; }
  double lr() const;
  void BeginStep();
  StepResult EndStep();
  // Evaluates the batches [begin, end) of `data` and adds what SumOfLosses says of those that begin
  // with one of the first `num_samples` samples on this rank.
  void AddLosses(const Dataset& data, int64_t num_samples, const BatchSizes& sizes, int64_t begin,
                 int64_t end, double& loss, double& num_counted);
  // Throws kFailedPrecondition if `call` is not the call for the phase that comes next.
  void RequirePhase(Phase phase, const char* call) const;
  void RequireNoStep(const char* call) const;  // The same if a step is under way.
  void RequireData(const char* call) const;    // The same if there is no data set.
  // Computes the loss, or leaves the logits to the caller if `logits` is set.
  void Forward(const Batch& batch, const char* call, std::vector<float>* logits);
  // Throws kFailedPrecondition unless the last forward pass has computed the loss, or has not.
  void RequireLoss(bool is_computed) const;
  // A forward pass without training, whose executor `set_up` prepares.
  void Infer(const Batch& batch, const char* call, const std::function<void(Executor&)>& set_up);
  std::unique_ptr<CheckpointSave> BeginCheckpoint(const std::string& dir, const std::string& tag,
                                                  const Json& client_state, bool async);

  const Resources resources;
  const DsConfig config;
  const Groups groups;
  const Plan plan;
  UnitStates states;
  BatchLoader loader;
  Redistributor redistributor;
  TiedUnits tied;
  Observers observers;
  Executor executor;
  std::optional<Plan> unreduced_plan;  // This and the next one: with 1-bit Adam only.
  std::optional<Executor> unreduced_executor;
  Executor* current = &executor;   // The executor of the step under way.
  std::optional<double> given_lr;  // The learning rate that the caller has set.
  bool awaits_step = false;        // Backward has run, Step has not.
  bool leaves_loss = false;        // The caller computes the loss of the micro-batch.
  std::chrono::steady_clock::time_point step_start;
  int64_t num_steps = 0;
  int64_t num_samples = 0;
  int64_t num_skipped_steps = 0;
  LossScaler loss_scaler;

 private:
  StepInputs NextInputs() const;
};

Engine::Parts::Parts(const Resources& given_resources, const DsConfig& given_config, uint64_t seed)
    : resources(given_resources),
      config(given_config),
      groups(resources.group, config.pipeline.num_stages),
      plan(PlanFor(resources.model, config, resources.group.size(), groups.stage())),
      states(resources.model, plan, StatesFor(config, seed), groups.data().rank(),
             resources.memory),
      loader(resources.dataset, resources.memory.device, resources.memory.kernels, config.batch,
             resources.seq_len, groups.data().rank(), groups.data().size(), resources.model.image),
      redistributor(plan, states, groups.data(), config.communication_dtype(groups.data().size()),
                    config.predivision(groups.data().size())),
      tied(resources.model, plan, config.grad_dtype(), groups, resources.memory.device),
      executor(resources.model, plan, config, states, redistributor, loader, groups, tied,
               observers),
      loss_scaler(config.fp16) {
  if (!IsOneBit(config.optimizer)) return;
  unreduced_plan = UnreducedPlanFor(resources.model, config, resources.group.size());
  unreduced_executor.emplace(resources.model, *unreduced_plan, config, states, redistributor,
                             loader, groups, tied, observers);
}

double Engine::Parts::lr() const {
  if (given_lr && config.scheduler.type.empty()) return *given_lr;
  return LearningRate(config.optimizer, config.scheduler, num_updates());
}

StepInputs Engine::Parts::NextInputs() const {
  StepInputs inputs;
  inputs.first_sample = num_samples;
  inputs.update = num_updates() + 1;
  inputs.optimizer = ScheduledSettings(config.optimizer, config.scheduler, num_updates());
  inputs.optimizer.lr = lr();
  inputs.loss_scale = loss_scaler.Scale();
  return inputs;
}

void Engine::Parts::BeginStep() {
  step_start = std::chrono::steady_clock::now();
  resources.memory.device.BeginStep();
  const bool frozen = unreduced_executor && num_updates() >= config.optimizer.freeze_step;
  current = frozen ? &*unreduced_executor : &executor;
  current->Begin(NextInputs());
  awaits_step = false;
}

StepResult Engine::Parts::EndStep() {
  StepResult result = current->result();
  ++num_steps;
  num_samples += config.batch.train_batch_size;
  num_skipped_steps += result.skipped ? 1 : 0;
  loss_scaler.Update(result.skipped);
  const auto end = std::chrono::steady_clock::now();
  result.latency_ms = std::chrono::duration<double, std::milli>(end - step_start).count();
  if (observers.trace != nullptr) {
    observers.trace->Add({.lane = Trace::kSteps,
                          .name = "step",
                          .begin = step_start,
                          .end = end,
                          .step = num_steps});
  }
  return result;
}

void Engine::Parts::RequirePhase(Phase phase, const char* call) const {
  constexpr const char* kCalls[] = {"Forward", "Backward", "Step"};
  if (groups.num_stages() > 1) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}: the engine has {} pipeline stages; expected TrainBatch or Evaluate", call,
          groups.num_stages());
  }
  const Phase next = current->AtEnd() ? Phase::kForward : current->NextPhase();
  if (next == phase) return;
  Throw(ErrorCode::kFailedPrecondition, "{}: called out of turn; expected {}", call,
        kCalls[static_cast<size_t>(next)]);
}

void Engine::Parts::RequireNoStep(const char* call) const {
  if (current->AtEnd()) return;
  Throw(ErrorCode::kFailedPrecondition,
        "{}: a step is under way; expected Forward, Backward and Step until it ends", call);
}

void Engine::Parts::RequireData(const char* call) const {
  if (resources.dataset != nullptr) return;
  Throw(ErrorCode::kFailedPrecondition,
        "{}: the engine has no data set; give it one, or Forward batches of your own", call);
}

Engine::Engine(const Resources& resources, const DsConfig& config, uint64_t seed)
    : parts_(std::make_unique<Parts>(WithPlannedBuffers(resources, config), config, seed)) {}

Engine::~Engine() = default;

StepResult Engine::TrainBatch() {
  parts_->RequireNoStep("TrainBatch");
  if (parts_->resources.memory.device.kind() == Arena::Kind::kReal)
    parts_->RequireData("TrainBatch");
  parts_->BeginStep();
  parts_->current->RunToEnd();
  return parts_->EndStep();
}

void Engine::set_trace(Trace* trace) {
  parts_->observers.trace = trace;
  parts_->states.set_trace(trace);
  parts_->redistributor.set_trace(trace);
  const Memory& memory = parts_->resources.memory;
  for (Kernels* kernels : {&memory.kernels, &memory.host_kernels})
    kernels->stream().set_trace(trace);
}

void Engine::set_on_work(std::function<void()> on_work) {
  parts_->observers.on_done = [on_work = std::move(on_work)](const Instruction&) {
    if (on_work) on_work();
  };
}

void Engine::Parts::Forward(const Batch& batch, const char* call, std::vector<float>* logits) {
  RequirePhase(Phase::kForward, call);
  leaves_loss = logits != nullptr;
  CheckBatch(batch, resources.model, resources.seq_len, /*needs_targets=*/!leaves_loss);
  if (current->AtEnd()) BeginStep();
  awaits_step = false;
  current->LeaveLogitsIn(logits);
  current->Run(&batch);
  current->LeaveLogitsIn(nullptr);
}

double Engine::Forward(const Batch& batch) {
  parts_->Forward(batch, "Forward", nullptr);
  return parts_->current->MicroBatchLoss();
}

std::vector<float> Engine::ForwardLogits(const Batch& batch) {
  std::vector<float> logits;
  parts_->Forward(batch, "ForwardLogits", &logits);
  return logits;
}

const Batch& Engine::NextBatch() {
  parts_->RequirePhase(Phase::kForward, "NextBatch");
  parts_->RequireData("NextBatch");
  return parts_->loader.Load(parts_->num_samples, parts_->current->micro_batch());
}

void Engine::Parts::RequireLoss(bool is_computed) const {
  RequirePhase(Phase::kBackward, "Backward");
  if (is_computed == !leaves_loss) return;
  Throw(ErrorCode::kFailedPrecondition, "Backward: {}",
        leaves_loss ? "ForwardLogits computes no loss; expected yours and its gradient"
                    : "Forward has computed the loss; call ForwardLogits for one of your own");
}

void Engine::Backward() {
  parts_->RequireLoss(/*is_computed=*/true);
  parts_->current->Run();
  parts_->awaits_step = true;
}

void Engine::Backward(std::span<const float> logits_grad, double loss) {
  parts_->RequireLoss(/*is_computed=*/false);
  parts_->current->TakeLoss(logits_grad, loss);
  parts_->current->Run();
  parts_->awaits_step = true;
}

std::optional<StepResult> Engine::Step() {
  const bool between = !parts_->current->AtEnd() && parts_->current->NextPhase() == Phase::kForward;
  parts_->RequirePhase(between ? Phase::kForward : Phase::kStep, "Step");
  parts_->awaits_step = false;
  if (between) return std::nullopt;
  parts_->current->Run();
  return parts_->EndStep();
}

bool Engine::IsGradientAccumulationBoundary() const {
  if (parts_->awaits_step) return parts_->current->NextPhase() == Phase::kStep;
  return parts_->current->micro_batch() + 1 == parts_->config.batch.accumulation_steps;
}

double Engine::Evaluate(const Dataset& data, int64_t num_batches) {
  return EvaluateSamples(data, num_batches * parts_->config.batch.train_batch_size);
}

double Engine::EvaluateSamples(const Dataset& data, int64_t num_samples) {
  parts_->RequireNoStep("Evaluate");
  const int64_t most = data.NumSamples(parts_->resources.seq_len);
  if (num_samples < 1 || num_samples > most) {
    Throw(ErrorCode::kInvalidArgument,
          "evaluation over {} samples; expected 1 to the data's {} samples", num_samples, most);
  }
  double loss = 0, num_counted = 0;
  const BatchSizes& whole = parts_->config.batch;
  const int64_t num_whole = num_samples / whole.train_batch_size;
  parts_->AddLosses(data, num_samples, whole, 0, num_whole, loss, num_counted);
  // The rest in micro-batches of one, of which every rank has one at a time.
  const int num_ranks = parts_->groups.data().size();
  parts_->AddLosses(data, num_samples, {num_ranks, 1, 1},
                    num_whole * whole.train_batch_size / num_ranks,
                    (num_samples + num_ranks - 1) / num_ranks, loss, num_counted);
  loss = parts_->groups.world().SumScalar(loss);
  return loss / std::max(parts_->groups.world().SumScalar(num_counted), 1.0);
}

void Engine::Parts::AddLosses(const Dataset& data, int64_t num_samples, const BatchSizes& sizes,
                              int64_t begin, int64_t end, double& loss, double& num_counted) {
  if (begin >= end) return;
  const Plan evaluation =
      EvaluationPlanFor(resources.model, config, plan, groups.stage(), sizes.accumulation_steps);
  BatchLoader batches(&data, resources.memory.device, resources.memory.kernels, sizes,
                      resources.seq_len, groups.data().rank(), groups.data().size(),
                      resources.model.image);
  batches.set_last_sample(data.NumSamples(resources.seq_len) - 1);
  Executor evaluator(resources.model, evaluation, config, states, redistributor, batches, groups,
                     tied, observers);
  for (int64_t batch = begin; batch < end; ++batch) {
    evaluator.Begin({.first_sample = batch * sizes.train_batch_size});
    evaluator.RunToEnd();
    const bool exists = batch * sizes.train_batch_size + groups.data().rank() < num_samples;
    if (!exists) continue;
    const auto [own_loss, own_counted] = evaluator.SumOfLosses();
    loss += own_loss;
    num_counted += own_counted;
  }
}

void Engine::Parts::Infer(const Batch& batch, const char* call,
                          const std::function<void(Executor&)>& set_up) {
  RequireNoStep(call);
  if (groups.num_stages() > 1) {
    Throw(ErrorCode::kUnimplemented, "{}: the engine has {} pipeline stages; expected one", call,
          groups.num_stages());
  }
  CheckBatch(batch, resources.model, resources.model.max_seq_len, /*needs_targets=*/false);
  const Memory& memory = resources.memory;
  const Plan inference = EvaluationPlanFor(resources.model, config, plan, /*stage=*/0, 1);
  BatchLoader batches(nullptr, memory.device, memory.kernels, {.micro_batch_size = batch.B},
                      batch.T, 0, 1, resources.model.image);
  const Observers nobody;
  Executor predictor(resources.model, inference, config, states, redistributor, batches, groups,
                     tied, nobody);
  set_up(predictor);
  predictor.Begin({});
  predictor.RunToEnd(&batch);
}

std::vector<float> Engine::Logits(const Batch& batch) {
  std::vector<float> values;
  parts_->Infer(batch, "Logits", [&](Executor& executor) { executor.LeaveLogitsIn(&values); });
  return values;
}

std::vector<float> Engine::Predict(const Batch& batch) {
  const Memory& memory = parts_->resources.memory;
  const int64_t num_classes = parts_->resources.model.vocab_size;
  Buffer buffer;
  Tensor logits;
  parts_->Infer(batch, "Predict", [&](Executor& executor) {
    buffer = memory.device.Allocate(DType::kF32, batch.B * num_classes, "logits");
    logits = buffer.AsTensor(DType::kF32);
    executor.PredictInto(logits);
  });
  std::vector<float> values(static_cast<size_t>(logits.num_elems));
  memory.kernels.stream().Download(values.data(), logits.data, logits.bytes());
  return values;
}

double Engine::lr() const {
  return parts_->lr();
}

void Engine::set_lr(double lr) {
  if (!(lr >= 0 && std::isfinite(lr)))
    Throw(ErrorCode::kInvalidArgument, "set_lr: {}; expected a number >= 0", lr);
  parts_->given_lr = lr;
}

int64_t Engine::num_steps() const {
  return parts_->num_steps;
}

int64_t Engine::num_samples() const {
  return parts_->num_samples;
}

int64_t Engine::num_skipped_steps() const {
  return parts_->num_skipped_steps;
}

Traffic Engine::traffic() const {
  Traffic sum = parts_->groups.traffic();
  sum += parts_->tied.traffic();
  return sum;
}

std::unique_ptr<CheckpointSave> Engine::Parts::BeginCheckpoint(const std::string& dir,
                                                               const std::string& tag,
                                                               const Json& client_state,
                                                               bool async) {
  RequireNoStep(async ? "BeginCheckpoint" : "SaveCheckpoint");
  const CheckpointNotes notes = {{{"optimizer", config.optimizer.type},
                                  {"num_steps", num_steps},
                                  {"num_samples", num_samples},
                                  {"train_batch_size", config.batch.train_batch_size},
                                  {"num_skipped_steps", num_skipped_steps},
                                  {"loss_scaler", loss_scaler.state()},
                                  {"lr", given_lr ? Json(*given_lr) : Json()}},
                                 client_state};
  return std::make_unique<CheckpointSave>(dir, tag.empty() ? TagOf(num_steps) : tag,
                                          resources.model, states, notes, resources.group, async);
}

void Engine::SaveCheckpoint(const std::string& dir, const std::string& tag,
                            const Json& client_state) {
  parts_->BeginCheckpoint(dir, tag, client_state, /*async=*/false)->Finish(/*wait=*/true);
}

std::unique_ptr<CheckpointSave> Engine::BeginCheckpoint(const std::string& dir,
                                                        const std::string& tag,
                                                        const Json& client_state) {
  return parts_->BeginCheckpoint(dir, tag, client_state, /*async=*/true);
}

Json Engine::LoadCheckpoint(const std::string& dir, const std::string& tag) {
  parts_->RequireNoStep("LoadCheckpoint");
  const DsConfig& config = parts_->config;
  const std::string moments = NumMoments(config.optimizer) > 0 ? config.optimizer.type : "";
  CheckpointNotes notes = engine::LoadCheckpoint(dir, tag, parts_->resources.model, parts_->states,
                                                 moments, parts_->resources.group);
  parts_->num_steps = notes.engine.at("num_steps");
  // Old checkpoints do not have it.
  parts_->num_samples =
      notes.engine.value("num_samples", parts_->num_steps * config.batch.train_batch_size);
  parts_->num_skipped_steps = notes.engine.at("num_skipped_steps");
  parts_->loss_scaler.Restore(notes.engine.at("loss_scaler").get<LossScalerState>());
  const Json lr = notes.engine.value("lr", Json());  // Old checkpoints do not have it.
  parts_->given_lr = lr.is_null() ? std::nullopt : std::optional(lr.get<double>());
  if (parts_->unreduced_executor) parts_->unreduced_executor->ResetCompressionErrors();
  return std::move(notes.client_state);
}

bool Engine::Save16BitModel(const std::string& dir, const std::string& name, bool exclude_frozen) {
  parts_->RequireNoStep("Save16BitModel");
  const bool sharded =
      ZeroStageHomes(parts_->config.zero.stage).param.placement == Placement::kShard;
  if (sharded && !parts_->config.zero.gather_16bit_weights_on_model_save) return false;
  engine::Save16BitModel(dir, name, exclude_frozen, parts_->resources.model, parts_->states,
                         parts_->groups.data().size(), parts_->resources.group);
  return true;
}

const Plan& EngineInternals::plan() const {
  return engine_.parts_->plan;
}

UnitStates& EngineInternals::states() const {
  return engine_.parts_->states;
}

void EngineInternals::set_on_done(std::function<void(const Instruction&)> on_done) const {
  engine_.parts_->observers.on_done = std::move(on_done);
}

}  // namespace dsat::engine
