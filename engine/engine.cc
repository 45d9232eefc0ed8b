// The training engine.
#include "engine/engine.h"

#include <chrono>

#include "engine/checkpoint.h"
#include "engine/lr_schedule.h"
#include "engine/optimizer.h"
#include "engine/plan/build_plan.h"

namespace dsat::engine {

namespace {

DType ModelDType(const DsConfig& config) {
  if (config.fp16.enabled) return DType::kF16;
  return config.bf16 ? DType::kBF16 : DType::kF32;
}

}  // namespace

Plan PlanFor(const Model& model, const DsConfig& config, int world_size) {
  const ZeroConfig& zero = config.zero;
  PlanOptions options;
  options.homes = ZeroStageHomes(zero.stage);
  options.world_size = world_size;
  options.accumulation_steps = config.batch.accumulation_steps;
  options.reduce_bucket_elems = zero.reduce_bucket_size;
  options.gather_bucket_elems = zero.allgather_bucket_size;
  options.share_reduce_buckets = zero.contiguous_gradients;
  options.reduce_scatter = zero.reduce_scatter;
  options.overlap = zero.overlap_comm;
  options.persistent_param_elems = zero.stage3_param_persistence_threshold;
  options.prefetch_elems = zero.stage3_prefetch_bucket_size;
  options.max_live_elems = zero.stage3_max_live_parameters;
  return BuildPlan(PlanUnitsOf(model, world_size), options);
}

Engine::Engine(const Resources& resources, const DsConfig& config, uint64_t seed)
    : resources_(resources),
      config_(config),
      plan_(PlanFor(resources.model, config, resources.group.size())),
      states_(resources.model, plan_, ModelDType(config), resources.group.rank(),
              NumMoments(config.optimizer), seed, resources.arena, resources.kernels),
      loader_(resources.dataset, resources.arena, config.batch, resources.seq_len,
              resources.group.rank(), resources.group.size()),
      redistributor_(plan_, states_, resources.group, resources.kernels, resources.arena),
      executor_(resources.model, plan_, config_, states_, redistributor_, loader_, resources.group,
                resources.kernels, resources.arena),
      model_saver_(resources.model, states_, resources.group, resources.arena),
      loss_scaler_(config.fp16) {}

StepResult Engine::TrainStep() {
  const auto start = std::chrono::steady_clock::now();
  const int64_t num_updates = num_steps_ - num_skipped_steps_;
  StepInputs inputs;
  inputs.step = num_steps_;
  inputs.update = num_updates + 1;
  inputs.optimizer = ScheduledSettings(config_.optimizer, config_.scheduler, num_updates);
  inputs.loss_scale = loss_scaler_.Scale();
  const StepOutputs outputs = executor_.Run(inputs);
  ++num_steps_;
  num_skipped_steps_ += outputs.skipped ? 1 : 0;
  loss_scaler_.Update(outputs.skipped);

  StepResult result;
  result.loss = outputs.loss;
  result.grad_norm = outputs.grad_norm;
  result.lr = inputs.optimizer.lr;
  result.loss_scale = inputs.loss_scale;
  result.skipped = outputs.skipped;
  result.forward_ms = outputs.phase_ms[static_cast<size_t>(Phase::kForward)];
  result.backward_ms = outputs.phase_ms[static_cast<size_t>(Phase::kBackward)];
  result.step_ms = outputs.phase_ms[static_cast<size_t>(Phase::kStep)];
  result.forward_flops = outputs.forward_flops;
  result.flops = outputs.flops;
  result.activation_bytes = outputs.activation_bytes;
  const auto end = std::chrono::steady_clock::now();
  result.latency_ms = std::chrono::duration<double, std::milli>(end - start).count();
  return result;
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
  model_saver_.Save(dir, name, exclude_frozen);
  return true;
}

}  // namespace dsat::engine
