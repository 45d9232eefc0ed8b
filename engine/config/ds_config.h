// A ds_config.json as the built-in engine uses it.
//
// Key names, defaults and rules follow DeepSpeed 0.19 (deepspeed/runtime/config.py and
// runtime/zero/config.py); docs/ds_config.md lists every key and what dsat does with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/config/batch.h"
#include "engine/config/keys.h"
#include "engine/core/tensor.h"
#include "engine/io/async_file.h"
#include "engine/plan/placement.h"

namespace dsat::engine {

// The initial value of a member: what the config that ParseDsConfig reads has at a pointer, and
// elsewhere the default of the key table; of element `index` if it is an array. Converts to the
// type of the key.
class FromKey {
 public:
  explicit FromKey(const char* pointer, size_t index = 0) : pointer_(pointer), index_(index) {}
  // NOLINTBEGIN(google-explicit-constructor)
  operator bool() const { return Value() == true; }
  operator int() const { return Value().get<int>(); }
  // 0 or "" for null.
  operator int64_t() const { return Or(int64_t{0}); }
  operator double() const { return Or(0.0); }
  operator std::string() const { return Or(std::string()); }
  // By the name of a device.
  operator Tier() const;
  // NOLINTEND(google-explicit-constructor)
  // `fallback` for null.
  template <typename T>
  T Or(const T& fallback) const {
    const Json value = Value();
    return value.is_null() ? fallback : value.get<T>();
  }

 private:
  Json Value() const;

  const char* pointer_;
  size_t index_;
};

// Optimizer state beyond device memory (zero_optimization.offload_optimizer).
struct OffloadOptimizerConfig {
  Tier tier = FromKey("/zero_optimization/offload_optimizer/device");
  std::string nvme_path = FromKey("/zero_optimization/offload_optimizer/nvme_path");
  // Tensors of a sub-group's size in host memory.
  int64_t buffer_count = FromKey("/zero_optimization/offload_optimizer/buffer_count");
  bool pipeline_read = FromKey("/zero_optimization/offload_optimizer/pipeline_read");
  bool pipeline_write = FromKey("/zero_optimization/offload_optimizer/pipeline_write");
  // The part of the elements that is offloaded; the rest stays on the device.
  double ratio = FromKey("/zero_optimization/offload_optimizer/ratio");
  bool operator==(const OffloadOptimizerConfig&) const = default;
};

// Parameters beyond device memory (zero_optimization.offload_param).
struct OffloadParamConfig {
  Tier tier = FromKey("/zero_optimization/offload_param/device");
  std::string nvme_path = FromKey("/zero_optimization/offload_param/nvme_path");
  // Slices in host memory at once, and how many elements each may have.
  int64_t buffer_count = FromKey("/zero_optimization/offload_param/buffer_count");
  int64_t buffer_size = FromKey("/zero_optimization/offload_param/buffer_size");
  // Elements that stay in host memory.
  int64_t max_in_cpu = FromKey("/zero_optimization/offload_param/max_in_cpu");
  bool operator==(const OffloadParamConfig&) const = default;
};

// Where a training writes its scalars: output_path/job_name.
struct MonitorConfig {
  bool enabled = false;
  std::string output_path;
  std::string job_name;
  bool operator==(const MonitorConfig&) const = default;
};

// Sizes are in elements.
struct ZeroConfig {
  int stage = FromKey("/zero_optimization/stage");
  bool contiguous_gradients = FromKey("/zero_optimization/contiguous_gradients");
  bool reduce_scatter = FromKey("/zero_optimization/reduce_scatter");
  bool allgather_partitions = FromKey("/zero_optimization/allgather_partitions");
  bool overlap_comm = FromKey("/zero_optimization/overlap_comm");
  int64_t reduce_bucket_size = FromKey("/zero_optimization/reduce_bucket_size");
  int64_t allgather_bucket_size = FromKey("/zero_optimization/allgather_bucket_size");
  int64_t stage3_prefetch_bucket_size = FromKey("/zero_optimization/stage3_prefetch_bucket_size");
  // The largest parameter that is not sharded, and the most elements of all that are not.
  int64_t stage3_param_persistence_threshold =
      FromKey("/zero_optimization/stage3_param_persistence_threshold");
  int64_t stage3_model_persistence_threshold =
      FromKey("/zero_optimization/stage3_model_persistence_threshold");
  int64_t stage3_max_live_parameters = FromKey("/zero_optimization/stage3_max_live_parameters");
  int64_t stage3_max_reuse_distance = FromKey("/zero_optimization/stage3_max_reuse_distance");
  bool gather_16bit_weights_on_model_save =
      FromKey("/zero_optimization/stage3_gather_16bit_weights_on_model_save");
  int64_t sub_group_size = FromKey("/zero_optimization/sub_group_size");
  OffloadOptimizerConfig offload_optimizer;
  OffloadParamConfig offload_param;
  bool operator==(const ZeroConfig&) const = default;
};

struct ActivationConfig {
  // In layers; 0: everything is kept.
  int64_t checkpoint_interval = FromKey("/pipeline/activation_checkpoint_interval");
  // In place of an interval, if not 0.
  int64_t num_checkpoints = FromKey("/activation_checkpointing/number_checkpoints");
  bool checkpoints_on_host = FromKey("/activation_checkpointing/cpu_checkpointing");
  bool keeps_outputs = FromKey("/activation_checkpointing/keep_norms_and_activations");
  bool operator==(const ActivationConfig&) const = default;
};

struct PipelineConfig {
  int num_stages = FromKey("/pipeline/stages");
  std::string partition = FromKey("/pipeline/partition");
  bool operator==(const PipelineConfig&) const = default;
};

struct OptimizerConfig {
  std::string type = "adamw";  // In lower case; /optimizer/type has the names.
  double lr = FromKey("/optimizer/params/lr");
  double beta1 = FromKey("/optimizer/params/betas", 0);
  double beta2 = FromKey("/optimizer/params/betas", 1);
  double eps = FromKey("/optimizer/params/eps");
  double weight_decay = FromKey("/optimizer/params/weight_decay");
  bool decay_norms_and_biases = FromKey("/optimizer/params/decay_norms_and_biases");
  bool bias_correction = FromKey("/optimizer/params/bias_correction");
  bool adam_w_mode = FromKey("/optimizer/params/adam_w_mode");
  // adam, adamw: of bf16 parameters
  bool stochastic_rounding = FromKey("/optimizer/params/stochastic_rounding");
  // sgd
  double momentum = FromKey("/optimizer/params/momentum");
  double dampening = FromKey("/optimizer/params/dampening");
  bool nesterov = FromKey("/optimizer/params/nesterov");
  // lamb: the range of the trust ratio
  double max_coeff = FromKey("/optimizer/params/max_coeff");
  double min_coeff = FromKey("/optimizer/params/min_coeff");
  // adagrad
  double lr_decay = FromKey("/optimizer/params/lr_decay");
  // onebitadam: updates before it compresses
  int64_t freeze_step = FromKey("/optimizer/params/freeze_step");
  bool operator==(const OptimizerConfig&) const = default;
};

// The OneCycle schedule of DeepSpeed; step sizes are in updates.
struct OneCycleConfig {
  double min_lr = FromKey("/scheduler/params/cycle_min_lr");
  double max_lr = FromKey("/scheduler/params/cycle_max_lr");
  double decay_lr_rate = FromKey("/scheduler/params/decay_lr_rate");
  int64_t first_step_size = FromKey("/scheduler/params/cycle_first_step_size");
  int64_t second_step_size =
      FromKey("/scheduler/params/cycle_second_step_size").Or(first_step_size);
  int64_t decay_step_size = FromKey("/scheduler/params/decay_step_size");
  int64_t first_stair_count = FromKey("/scheduler/params/cycle_first_stair_count");
  int64_t second_stair_count =
      FromKey("/scheduler/params/cycle_second_stair_count").Or(first_stair_count);
  bool cycle_momentum = FromKey("/scheduler/params/cycle_momentum");
  double min_mom = FromKey("/scheduler/params/cycle_min_mom");
  double max_mom = FromKey("/scheduler/params/cycle_max_mom");
  double decay_mom_rate = FromKey("/scheduler/params/decay_mom_rate");
  bool operator==(const OneCycleConfig&) const = default;
};

struct LrRangeTestConfig {
  double min_lr = FromKey("/scheduler/params/lr_range_test_min_lr");
  double step_rate = FromKey("/scheduler/params/lr_range_test_step_rate");
  int64_t step_size = FromKey("/scheduler/params/lr_range_test_step_size");  // updates
  bool staircase = FromKey("/scheduler/params/lr_range_test_staircase");
  bool operator==(const LrRangeTestConfig&) const = default;
};

struct SchedulerConfig {
  // /scheduler/type has the names; "" = constant lr.
  std::string type = FromKey("/scheduler/type");
  double warmup_min_lr = FromKey("/scheduler/params/warmup_min_lr");
  double warmup_max_lr = FromKey("/scheduler/params/warmup_max_lr");
  int64_t warmup_num_steps = FromKey("/scheduler/params/warmup_num_steps");
  bool warmup_linear = false;  // else logarithmic
  // WarmupDecayLR, WarmupCosineLR
  int64_t total_num_steps = FromKey("/scheduler/params/total_num_steps");
  // WarmupCosineLR
  double warmup_min_ratio = FromKey("/scheduler/params/warmup_min_ratio");
  double cos_min_ratio = FromKey("/scheduler/params/cos_min_ratio");
  OneCycleConfig one_cycle = {};
  LrRangeTestConfig range_test = {};
  // Where the schedule starts; -1: at its beginning.
  int64_t last_batch_iteration = FromKey("/scheduler/params/last_batch_iteration");
  bool operator==(const SchedulerConfig&) const = default;
};

struct Fp16Config {
  bool enabled = FromKey("/fp16/enabled");
  double loss_scale = FromKey("/fp16/loss_scale");  // 0 = dynamic: all that follows
  int64_t initial_scale_power = FromKey("/fp16/initial_scale_power");
  int64_t loss_scale_window = FromKey("/fp16/loss_scale_window");
  int64_t hysteresis = FromKey("/fp16/hysteresis");
  bool consecutive_hysteresis = FromKey("/fp16/consecutive_hysteresis");
  double min_loss_scale = FromKey("/fp16/min_loss_scale");
  bool operator==(const Fp16Config&) const = default;
};

struct DsConfig {
  BatchSizes batch;
  bool bf16 = FromKey("/bf16/enabled");  // Not with fp16.enabled; f32 with neither.
  // false, for bf16 only: no step is skipped.
  bool check_grad_overflow = FromKey("/bf16/check_grad_overflow");
  // For bf16, Adam and AdamW only; the second not without the first.
  bool bf16_master_weights_and_grads = FromKey("/bf16/bf16_master_weights_and_grads");
  bool bf16_optimizer_states = FromKey("/bf16/bf16_optimizer_states");
  Fp16Config fp16;
  double gradient_clipping = FromKey("/gradient_clipping");  // 0 = off
  // Gradients are divided by it before they are reduced, and multiplied by it after.
  double gradient_predivide_factor = FromKey("/gradient_predivide_factor");
  bool average_gradients = true;  // false: their sum over the ranks
  // The type of communicated gradients; the model's if not given.
  std::optional<DType> communication_type;
  std::optional<DType> grad_accum_type;  // The model's if not given
  std::optional<int64_t> steps_per_print;
  MonitorConfig csv_monitor = {.enabled = FromKey("/csv_monitor/enabled"),
                               .output_path = FromKey("/csv_monitor/output_path"),
                               .job_name = FromKey("/csv_monitor/job_name")};
  MonitorConfig tensorboard = {.enabled = FromKey("/tensorboard/enabled"),
                               .output_path = FromKey("/tensorboard/output_path"),
                               .job_name = FromKey("/tensorboard/job_name")};
  int64_t seed = FromKey("/seed");
  ZeroConfig zero;
  ActivationConfig activation;
  PipelineConfig pipeline;
  AioOptions aio;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;

  // The type of parameters and activations.
  DType dtype() const {
    if (fp16.enabled) return DType::kF16;
    return bf16 ? DType::kBF16 : DType::kF32;
  }
  // The type in which gradients accumulate.
  DType grad_dtype() const { return grad_accum_type.value_or(dtype()); }
  // The type of what the optimizer updates: the parameter itself if it has this type and is on the
  // tier of the optimizer, else a copy of it.
  DType master_dtype() const { return bf16_master_weights_and_grads ? DType::kBF16 : DType::kF32; }
  DType moment_dtype() const { return bf16_optimizer_states ? DType::kBF16 : DType::kF32; }
  // The type in which gradients are communicated between `num_ranks` data-parallel ranks, and what
  // they are divided by before. Those of one rank are not converted.
  DType communication_dtype(int num_ranks) const {
    return num_ranks == 1 ? grad_dtype() : communication_type.value_or(dtype());
  }
  double predivision(int num_ranks) const { return num_ranks == 1 ? 1 : gradient_predivide_factor; }
  bool operator==(const DsConfig&) const = default;
};

// ValidateDsConfig, then the typed form for the built-in engine. Throws kUnimplemented naming key
// and value for what the built-in engine cannot honor; adds a warning by name for every key that is
// legal but means nothing to it (monitors, logging). `keys` stands in for Keys().
DsConfig ParseDsConfig(const Json& ds_config, const std::string& source, int64_t world_size,
                       std::vector<std::string>* warnings, const KeyTable& keys = Keys());
// The same on each rank of a run; rank 0 logs the warnings.
DsConfig ParseOnRank(const Json& ds_config, const std::string& source, int rank, int world_size);

}  // namespace dsat::engine
