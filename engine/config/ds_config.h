// A ds_config.json as the built-in engine uses it.
//
// Key names, defaults and rules follow DeepSpeed 0.19 (deepspeed/runtime/config.py and
// runtime/zero/config.py); docs/ds_config.md lists every key and what dsat does with it.
#ifndef DSAT_ENGINE_CONFIG_DS_CONFIG_H_
#define DSAT_ENGINE_CONFIG_DS_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/config/batch.h"
#include "engine/core/tensor.h"
#include "engine/io/async_file.h"
#include "engine/plan/placement.h"

namespace dsat::engine {

class KeyTable;

// Where a member starts: the default that the key table has at a pointer, of element `index` if it
// is an array. Converts to the type that the key has.
class Default {
 public:
  explicit Default(const char* pointer, size_t index = 0) : pointer_(pointer), index_(index) {}
  // NOLINTBEGIN(google-explicit-constructor)
  operator bool() const;
  operator int() const;
  operator int64_t() const;
  operator double() const;
  operator std::string() const;
  // NOLINTEND(google-explicit-constructor)

 private:
  const char* pointer_;
  size_t index_;
};

// Optimizer state beyond device memory (zero_optimization.offload_optimizer).
struct OffloadOptimizerConfig {
  Tier tier = Tier::kDevice;
  std::string nvme_path;
  // Tensors of a sub-group's size in host memory.
  int64_t buffer_count = Default("/zero_optimization/offload_optimizer/buffer_count");
  bool pipeline_read = Default("/zero_optimization/offload_optimizer/pipeline_read");
  bool pipeline_write = Default("/zero_optimization/offload_optimizer/pipeline_write");
  // The part of the elements that is offloaded; the rest stays on the device.
  double ratio = Default("/zero_optimization/offload_optimizer/ratio");
  bool operator==(const OffloadOptimizerConfig&) const = default;
};

// Parameters beyond device memory (zero_optimization.offload_param).
struct OffloadParamConfig {
  Tier tier = Tier::kDevice;
  std::string nvme_path;
  // Slices in host memory at once, and how many elements each may have.
  int64_t buffer_count = Default("/zero_optimization/offload_param/buffer_count");
  int64_t buffer_size = Default("/zero_optimization/offload_param/buffer_size");
  // Elements that stay in host memory.
  int64_t max_in_cpu = Default("/zero_optimization/offload_param/max_in_cpu");
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
  int stage = Default("/zero_optimization/stage");
  bool contiguous_gradients = Default("/zero_optimization/contiguous_gradients");
  bool reduce_scatter = Default("/zero_optimization/reduce_scatter");
  bool allgather_partitions = Default("/zero_optimization/allgather_partitions");
  bool overlap_comm = Default("/zero_optimization/overlap_comm");
  int64_t reduce_bucket_size = Default("/zero_optimization/reduce_bucket_size");
  int64_t allgather_bucket_size = Default("/zero_optimization/allgather_bucket_size");
  int64_t stage3_prefetch_bucket_size = Default("/zero_optimization/stage3_prefetch_bucket_size");
  // The largest parameter that is not sharded, and the most elements of all that are not.
  int64_t stage3_param_persistence_threshold =
      Default("/zero_optimization/stage3_param_persistence_threshold");
  int64_t stage3_model_persistence_threshold =
      Default("/zero_optimization/stage3_model_persistence_threshold");
  int64_t stage3_max_live_parameters = Default("/zero_optimization/stage3_max_live_parameters");
  int64_t stage3_max_reuse_distance = Default("/zero_optimization/stage3_max_reuse_distance");
  bool gather_16bit_weights_on_model_save =
      Default("/zero_optimization/stage3_gather_16bit_weights_on_model_save");
  int64_t sub_group_size = Default("/zero_optimization/sub_group_size");
  OffloadOptimizerConfig offload_optimizer;
  OffloadParamConfig offload_param;
  bool operator==(const ZeroConfig&) const = default;
};

struct ActivationConfig {
  // In layers; 0: everything is kept.
  int64_t checkpoint_interval = Default("/pipeline/activation_checkpoint_interval");
  int64_t num_checkpoints = 0;  // In place of an interval, if not 0.
  bool checkpoints_on_host = Default("/activation_checkpointing/cpu_checkpointing");
  bool keeps_outputs = Default("/activation_checkpointing/keep_norms_and_activations");
  bool operator==(const ActivationConfig&) const = default;
};

struct PipelineConfig {
  int num_stages = 1;
  std::string partition = Default("/pipeline/partition");
  bool operator==(const PipelineConfig&) const = default;
};

struct OptimizerConfig {
  std::string type = "adamw";  // In lower case; /optimizer/type has the names.
  double lr = Default("/optimizer/params/lr");
  double beta1 = Default("/optimizer/params/betas", 0);
  double beta2 = Default("/optimizer/params/betas", 1);
  double eps = Default("/optimizer/params/eps");
  double weight_decay = Default("/optimizer/params/weight_decay");
  bool decay_norms_and_biases = Default("/optimizer/params/decay_norms_and_biases");
  bool bias_correction = Default("/optimizer/params/bias_correction");
  bool adam_w_mode = Default("/optimizer/params/adam_w_mode");
  // adam, adamw: of bf16 parameters
  bool stochastic_rounding = Default("/optimizer/params/stochastic_rounding");
  // sgd
  double momentum = Default("/optimizer/params/momentum");
  double dampening = Default("/optimizer/params/dampening");
  bool nesterov = Default("/optimizer/params/nesterov");
  // lamb: the range of the trust ratio
  double max_coeff = Default("/optimizer/params/max_coeff");
  double min_coeff = Default("/optimizer/params/min_coeff");
  // adagrad
  double lr_decay = Default("/optimizer/params/lr_decay");
  // onebitadam: updates before it compresses
  int64_t freeze_step = Default("/optimizer/params/freeze_step");
  bool operator==(const OptimizerConfig&) const = default;
};

// The OneCycle schedule of DeepSpeed; step sizes are in updates.
struct OneCycleConfig {
  double min_lr = 0;
  double max_lr = 0;
  double decay_lr_rate = Default("/scheduler/params/decay_lr_rate");
  int64_t first_step_size = Default("/scheduler/params/cycle_first_step_size");
  int64_t second_step_size = first_step_size;
  int64_t decay_step_size = Default("/scheduler/params/decay_step_size");
  int64_t first_stair_count = Default("/scheduler/params/cycle_first_stair_count");
  int64_t second_stair_count = first_stair_count;
  bool cycle_momentum = Default("/scheduler/params/cycle_momentum");
  double min_mom = Default("/scheduler/params/cycle_min_mom");
  double max_mom = Default("/scheduler/params/cycle_max_mom");
  double decay_mom_rate = Default("/scheduler/params/decay_mom_rate");
  bool operator==(const OneCycleConfig&) const = default;
};

struct LrRangeTestConfig {
  double min_lr = Default("/scheduler/params/lr_range_test_min_lr");
  double step_rate = Default("/scheduler/params/lr_range_test_step_rate");
  int64_t step_size = Default("/scheduler/params/lr_range_test_step_size");  // updates
  bool staircase = Default("/scheduler/params/lr_range_test_staircase");
  bool operator==(const LrRangeTestConfig&) const = default;
};

struct SchedulerConfig {
  // /scheduler/type has the names; "" = constant lr.
  std::string type;
  double warmup_min_lr = Default("/scheduler/params/warmup_min_lr");
  double warmup_max_lr = 0;
  int64_t warmup_num_steps = Default("/scheduler/params/warmup_num_steps");
  bool warmup_linear = false;   // else logarithmic
  int64_t total_num_steps = 0;  // WarmupDecayLR, WarmupCosineLR
  // WarmupCosineLR
  double warmup_min_ratio = Default("/scheduler/params/warmup_min_ratio");
  double cos_min_ratio = Default("/scheduler/params/cos_min_ratio");
  OneCycleConfig one_cycle = {};
  LrRangeTestConfig range_test = {};
  // Where the schedule starts; -1: at its beginning.
  int64_t last_batch_iteration = Default("/scheduler/params/last_batch_iteration");
  bool operator==(const SchedulerConfig&) const = default;
};

struct Fp16Config {
  bool enabled = Default("/fp16/enabled");
  double loss_scale = Default("/fp16/loss_scale");  // 0 = dynamic: all that follows
  int64_t initial_scale_power = Default("/fp16/initial_scale_power");
  int64_t loss_scale_window = Default("/fp16/loss_scale_window");
  int64_t hysteresis = Default("/fp16/hysteresis");
  bool consecutive_hysteresis = Default("/fp16/consecutive_hysteresis");
  double min_loss_scale = Default("/fp16/min_loss_scale");
  bool operator==(const Fp16Config&) const = default;
};

struct DsConfig {
  BatchSizes batch;
  bool bf16 = Default("/bf16/enabled");  // Not with fp16.enabled; f32 with neither.
  // false, for bf16 only: no step is skipped.
  bool check_grad_overflow = Default("/bf16/check_grad_overflow");
  // For bf16, Adam and AdamW only; the second not without the first.
  bool bf16_master_weights_and_grads = Default("/bf16/bf16_master_weights_and_grads");
  bool bf16_optimizer_states = Default("/bf16/bf16_optimizer_states");
  Fp16Config fp16;
  double gradient_clipping = Default("/gradient_clipping");  // 0 = off
  // Gradients are divided by it before they are reduced, and multiplied by it after.
  double gradient_predivide_factor = Default("/gradient_predivide_factor");
  bool average_gradients = true;  // false: their sum over the ranks
  // The type of communicated gradients; the model's if not given.
  std::optional<DType> communication_type;
  std::optional<DType> grad_accum_type;  // The model's if not given
  std::optional<int64_t> steps_per_print;
  MonitorConfig csv_monitor = {.enabled = Default("/csv_monitor/enabled"),
                               .output_path = Default("/csv_monitor/output_path"),
                               .job_name = Default("/csv_monitor/job_name")};
  MonitorConfig tensorboard = {.enabled = Default("/tensorboard/enabled"),
                               .output_path = Default("/tensorboard/output_path"),
                               .job_name = Default("/tensorboard/job_name")};
  int64_t seed = Default("/seed");
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

// CheckDsConfig, then the typed form for the built-in engine. Throws kUnimplemented naming key and
// value for what the built-in engine cannot honor; adds a warning by name for every key that is
// legal but means nothing to it (monitors, logging). `keys` stands in for Keys().
DsConfig ParseDsConfig(const Json& ds_config, const std::string& source, int64_t world_size,
                       std::vector<std::string>* warnings);
DsConfig ParseDsConfig(const Json& ds_config, const std::string& source, int64_t world_size,
                       std::vector<std::string>* warnings, const KeyTable& keys);
// The same on each rank of a run; rank 0 logs the warnings.
DsConfig ParseOnRank(const Json& ds_config, const std::string& source, int rank, int world_size);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CONFIG_DS_CONFIG_H_
