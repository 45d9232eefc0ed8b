// A ds_config.json as the built-in engine uses it.
//
// Key names, defaults and rules follow DeepSpeed 0.19 (deepspeed/runtime/config.py and
// runtime/zero/config.py); docs/ds_config.md lists every key and what dsat does with it.
// ParseDsConfig takes every default from the key table; a test holds the initial values below equal
// to it.
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
const KeyTable& Keys();

// Optimizer state beyond device memory (zero_optimization.offload_optimizer).
struct OffloadOptimizerConfig {
  Tier tier = Tier::kDevice;
  std::string nvme_path;
  int64_t buffer_count = 4;  // Tensors of a sub-group's size in host memory.
  bool pipeline_read = false;
  bool pipeline_write = false;
  double ratio = 1.0;  // Of the elements; the rest stays on the device.
  bool operator==(const OffloadOptimizerConfig&) const = default;
};

// Parameters beyond device memory (zero_optimization.offload_param).
struct OffloadParamConfig {
  Tier tier = Tier::kDevice;
  std::string nvme_path;
  int64_t buffer_count = 5;            // Slices in host memory at once,
  int64_t buffer_size = 100'000'000;   // and how many elements each may have.
  int64_t max_in_cpu = 1'000'000'000;  // Elements that stay in host memory.
  bool operator==(const OffloadParamConfig&) const = default;
};

struct ZeroConfig {
  int stage = 0;
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  bool allgather_partitions = true;
  bool overlap_comm = false;
  int64_t reduce_bucket_size = 500'000'000;                // elements
  int64_t allgather_bucket_size = 500'000'000;             // elements
  int64_t stage3_prefetch_bucket_size = 50'000'000;        // elements
  int64_t stage3_param_persistence_threshold = 100'000;    // elements, per parameter
  int64_t stage3_max_live_parameters = 1'000'000'000;      // elements
  bool gather_16bit_weights_on_model_save = false;         // stage 3
  int64_t stage3_max_reuse_distance = 1'000'000'000;       // elements
  int64_t stage3_model_persistence_threshold = INT64_MAX;  // elements, all persistent parameters
  int64_t sub_group_size = 1'000'000'000;                  // elements
  OffloadOptimizerConfig offload_optimizer;
  OffloadParamConfig offload_param;
  bool operator==(const ZeroConfig&) const = default;
};

struct ActivationConfig {
  int64_t checkpoint_interval = 0;  // Layers; 0: everything is kept.
  int64_t num_checkpoints = 0;      // In place of an interval, if not 0.
  bool checkpoints_on_host = false;
  bool operator==(const ActivationConfig&) const = default;
};

struct PipelineConfig {
  int num_stages = 1;
  std::string partition = "best";
  bool operator==(const PipelineConfig&) const = default;
};

struct OptimizerConfig {
  std::string type = "adamw";  // lower case: adam, adamw, sgd, lamb, adagrad, lion, onebitadam
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool bias_correction = true;
  bool adam_w_mode = true;
  bool stochastic_rounding = false;    // adam, adamw: of bf16 parameters
  double momentum = 0, dampening = 0;  // sgd
  bool nesterov = false;
  double max_coeff = 10, min_coeff = 0.01;  // lamb: range of the trust ratio
  double lr_decay = 0;                      // adagrad
  int64_t freeze_step = 100'000;            // onebitadam: updates before it compresses
  bool operator==(const OptimizerConfig&) const = default;
};

// The OneCycle schedule of DeepSpeed; step sizes are in updates.
struct OneCycleConfig {
  double min_lr = 0, max_lr = 0, decay_lr_rate = 0;
  int64_t first_step_size = 2000, second_step_size = 2000, decay_step_size = 0;
  int64_t first_stair_count = 0, second_stair_count = 0;
  bool cycle_momentum = true;
  double min_mom = 0.8, max_mom = 0.9, decay_mom_rate = 0;
  bool operator==(const OneCycleConfig&) const = default;
};

struct LrRangeTestConfig {
  double min_lr = 1e-3, step_rate = 1;
  int64_t step_size = 2000;  // updates
  bool staircase = false;
  bool operator==(const LrRangeTestConfig&) const = default;
};

struct SchedulerConfig {
  // "" = constant lr; WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest.
  std::string type;
  double warmup_min_lr = 0, warmup_max_lr = 1e-3;
  int64_t warmup_num_steps = 1000;
  bool warmup_linear = false;                         // else logarithmic
  int64_t total_num_steps = 0;                        // WarmupDecayLR, WarmupCosineLR
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;  // WarmupCosineLR
  OneCycleConfig one_cycle = {};
  LrRangeTestConfig range_test = {};
  int64_t last_batch_iteration = -1;  // Where the schedule starts; -1: at its beginning.
  bool operator==(const SchedulerConfig&) const = default;
};

struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;  // 0 = dynamic: all that follows
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  bool operator==(const Fp16Config&) const = default;
};

struct DsConfig {
  BatchSizes batch;
  bool bf16 = false;                // Not with fp16.enabled; f32 with neither.
  bool check_grad_overflow = true;  // false, for bf16 only: no step is skipped.
  // For bf16, Adam and AdamW only; the second not without the first.
  bool bf16_master_weights_and_grads = false;
  bool bf16_optimizer_states = false;
  Fp16Config fp16;
  double gradient_clipping = 1.0;  // 0 = off
  // Gradients are divided by it before they are reduced, and multiplied by it after.
  double gradient_predivide_factor = 1.0;
  bool average_gradients = true;            // false: their sum over the ranks
  std::optional<DType> communication_type;  // Of communicated gradients; the model's if not given
  std::optional<DType> grad_accum_type;     // The model's if not given
  std::optional<int64_t> steps_per_print;
  int64_t seed = 42;
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
// legal but means nothing to it (monitors, logging).
DsConfig ParseDsConfig(const Json& ds_config, const std::string& source, int64_t world_size,
                       std::vector<std::string>* warnings, const KeyTable& keys = Keys());

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CONFIG_DS_CONFIG_H_
