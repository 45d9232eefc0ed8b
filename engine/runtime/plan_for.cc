// From a ds_config to the options of a plan.
#include "engine/runtime/plan_for.h"

#include <algorithm>

#include "engine/plan/build_plan.h"
#include "engine/runtime/executor/pipeline.h"
#include "engine/runtime/optimizer/optimizer.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {
namespace {

// Layers between two activation checkpoints; the last layer is never recomputed.
int64_t CheckpointInterval(const ActivationConfig& activation, int64_t num_layers) {
  if (activation.num_checkpoints == 0) return activation.checkpoint_interval;
  return std::max<int64_t>((num_layers - 2) / activation.num_checkpoints + 1, 1);
}

int64_t NumParamTensors(const Model& model) {
  int64_t count = 0;
  for (const auto& layer : model.layers)
    count += std::ssize(layer->params());
  return count;
}

// DeepSpeed counts buffers by tensor: a sub-group needs one for its gradient, its master copy and
// each moment.
OffloadOptions OffloadOf(const ZeroConfig& zero, int num_moments) {
  const OffloadOptimizerConfig& optimizer = zero.offload_optimizer;
  OffloadOptions offload;
  offload.optimizer_ratio = optimizer.ratio;
  offload.pipeline_read = optimizer.pipeline_read;
  offload.pipeline_write = optimizer.pipeline_write;
  const int64_t per_group = num_moments + 2;
  if (optimizer.tier == Tier::kNvme && optimizer.buffer_count < per_group) {
    Throw(ErrorCode::kInvalidArgument,
          "ds_config: /zero_optimization/offload_optimizer/buffer_count is {}; expected at least "
          "{}: gradient, parameters and optimizer state of a sub-group",
          optimizer.buffer_count, per_group);
  }
  const int64_t pipelined =
      1 + (optimizer.pipeline_read ? 1 : 0) + (optimizer.pipeline_write ? 1 : 0);
  offload.num_state_buffers =
      static_cast<int>(std::max(pipelined, optimizer.buffer_count / per_group));
  offload.max_param_elems_in_host = zero.offload_param.max_in_cpu;
  offload.num_params_ahead = static_cast<int>(zero.offload_param.buffer_count) - 1;
  return offload;
}

void CheckParamBuffers(const ZeroConfig& zero, const Plan& plan,
                       const std::vector<PlanUnit>& units) {
  const OffloadParamConfig& param = zero.offload_param;
  if (param.tier == Tier::kNvme && param.buffer_count < 1) {
    Throw(ErrorCode::kInvalidArgument,
          "ds_config: /zero_optimization/offload_param/buffer_count is {}; expected at least 1",
          param.buffer_count);
  }
  int64_t largest = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    if (plan.units[u].param.tier == Tier::kNvme)
      largest = std::max(largest, units[u].num_elems / plan.world_size);
  }
  if (largest <= param.buffer_size) return;
  Throw(ErrorCode::kInvalidArgument,
        "ds_config: /zero_optimization/offload_param/buffer_size is {}; expected at least {} "
        "elements, a rank's part of the largest layer",
        param.buffer_size, largest);
}

PlanOptions OptionsFor(const Model& model, const DsConfig& config, int world_size, int stage) {
  const ZeroConfig& zero = config.zero;
  const PipelineConfig& pipeline = config.pipeline;
  PlanOptions options;
  options.homes = ZeroStageHomes(zero.stage, zero.offload_optimizer.tier, zero.offload_param.tier);
  options.world_size = world_size / pipeline.num_stages;
  options.accumulation_steps = config.batch.accumulation_steps;
  options.reduce_bucket_elems = zero.reduce_bucket_size;
  options.gather_bucket_elems = zero.allgather_bucket_size;
  options.share_reduce_buckets = zero.contiguous_gradients;
  options.reduce_scatter = zero.reduce_scatter;
  options.gather_updated = zero.allgather_partitions;
  options.fold_grads = config.grad_dtype() != config.dtype();
  options.overlap = zero.overlap_comm && pipeline.num_stages == 1;
  options.persistent_param_elems = zero.stage3_param_persistence_threshold;
  options.max_persistent_elems = zero.stage3_model_persistence_threshold;
  options.prefetch_elems = zero.stage3_prefetch_bucket_size;
  options.max_live_elems = zero.stage3_max_live_parameters;
  options.max_reuse_elems = zero.stage3_max_reuse_distance;
  if (config.optimizer.type == "lamb") options.num_trust_ratios = NumParamTensors(model);
  // Momenta are compressed unit by unit.
  options.sub_group_elems = IsOneBit(config.optimizer) ? INT64_MAX : zero.sub_group_size;
  options.offload = OffloadOf(zero, NumMoments(config.optimizer));
  options.checkpoint_interval =
      CheckpointInterval(config.activation, static_cast<int64_t>(model.layers.size()));
  options.checkpoints_on_host = config.activation.checkpoints_on_host;
  if (pipeline.num_stages > 1) {
    options.stage_begins = PartitionLayers(model, pipeline.num_stages, pipeline.partition,
                                           "ds_config: /pipeline/partition");
    options.stage = stage;
  }
  return options;
}

}  // namespace

Plan PlanFor(const Model& model, const DsConfig& config, int world_size, int stage) {
  const PlanOptions options = OptionsFor(model, config, world_size, stage);
  const std::vector<PlanUnit> units = PlanUnitsOf(model, options.world_size);
  Plan plan = BuildPlan(units, options);
  CheckParamBuffers(config.zero, plan, units);
  return plan;
}

Plan UnreducedPlanFor(const Model& model, const DsConfig& config, int world_size) {
  PlanOptions options = OptionsFor(model, config, world_size, 0);
  options.reduce_grads = false;
  return BuildPlan(PlanUnitsOf(model, options.world_size), options);
}

Plan EvaluationPlanFor(const Model& model, const DsConfig& config, const Plan& training, int stage,
                       int64_t num_micro_batches) {
  const int world_size = training.world_size * config.pipeline.num_stages;
  PlanOptions options = OptionsFor(model, config, world_size, stage);
  options.given_bucket_row_elems = training.bucket_row_elems;
  options.backward = false;
  options.accumulation_steps = num_micro_batches;
  return BuildPlan(PlanUnitsOf(model, options.world_size), options);
}

}  // namespace dsat::engine
