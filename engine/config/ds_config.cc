// From a checked config to the typed form of the built-in engine.
#include "engine/config/ds_config.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/config/validate.h"

namespace dsat::engine {
namespace {

const Json& ValueAt(const char* pointer, size_t index) {
  const Key* key = Keys().Find(pointer);
  DSAT_CHECK(key != nullptr, "{} is not in the key table", pointer);
  const Json& value = Keys().Default(*key);
  return value.is_array() ? value.at(index) : value;
}

constexpr char kElsewhere[] = "an external DeepSpeed entrypoint can run it";

// Refuses a text that the built-in engine does not know.
void CheckKnown(const Settings& settings, const Key& key, const std::string& source) {
  if (*key.known == '\0') return;
  const std::string text = settings.Lower(key.pointer);
  if (text.empty() || IsOneOf(text, LowerCase(key.known))) return;
  Throw(ErrorCode::kUnimplemented, "{}: {} is \"{}\"; the built-in engine has {} ({})", source,
        key.pointer, settings.Text(key.pointer), key.known, kElsewhere);
}

// Applies the table's column on the built-in engine to every key that is not at its default.
void CheckBuiltin(const Settings& settings, const std::string& source,
                  std::vector<std::string>* warnings) {
  for (const Key& key : settings.keys()) {
    CheckKnown(settings, key, source);
    const bool decides = key.builtin == Builtin::kRefuses || key.builtin == Builtin::kWarns;
    if (!decides || !settings.Differs(key)) continue;
    const std::string value = settings.Given(key.pointer)->dump();
    if (key.builtin == Builtin::kRefuses) {
      Throw(ErrorCode::kUnimplemented, "{}: {} is {}; the built-in engine has {} only ({})", source,
            key.pointer, value, key.fallback, kElsewhere);
    }
    warnings->push_back(
        fmt::format("{}: {} is {}: the built-in engine has no such mechanism and runs without it",
                    source, key.pointer, value));
  }
}

// "fp16", "bf16" and "fp32", or torch's other names for them.
std::optional<DType> ReadType(const Settings& s, const std::string& pointer) {
  if (s.Given(pointer) == nullptr) return std::nullopt;
  const std::string name = s.Lower(pointer);
  if (IsOneOf(name, "fp32 float32")) return DType::kF32;
  return IsOneOf(name, "bf16 bfloat16") ? DType::kBF16 : DType::kF16;
}

// Checks what the built-in engine asks of bf16 state beyond the rules of DeepSpeed.
void CheckBf16State(const Settings& s, const std::string& source) {
  const std::string type = s.Lower("/optimizer/type");
  for (const char* key : {"/bf16/bf16_master_weights_and_grads", "/bf16/bf16_optimizer_states"}) {
    if (!s.Is(key)) continue;
    if (!s.Is("/bf16/enabled")) {
      Throw(ErrorCode::kInvalidArgument, "{}: {} is true; expected false unless /bf16/enabled is",
            source, key);
    }
    if (!type.empty() && !IsOneOf(type, "adam adamw")) {
      Throw(ErrorCode::kUnimplemented,
            "{}: {} is true; the built-in engine has it for Adam and AdamW only, and "
            "/optimizer/type is \"{}\" ({})",
            source, key, s.Text("/optimizer/type"), kElsewhere);
    }
  }
  const std::optional<DType> grads = ReadType(s, "/data_types/grad_accum_dtype");
  if (!s.Is("/bf16/bf16_master_weights_and_grads") || grads.value_or(DType::kBF16) == DType::kBF16)
    return;
  Throw(ErrorCode::kInvalidArgument,
        "{}: /data_types/grad_accum_dtype is \"{}\"; expected \"bf16\", since "
        "/bf16/bf16_master_weights_and_grads is true",
        source, s.Text("/data_types/grad_accum_dtype"));
}

Tier TierOf(const std::string& device) {
  return device == "nvme" ? Tier::kNvme : device == "cpu" ? Tier::kHost : Tier::kDevice;
}

OffloadOptimizerConfig ReadOffloadOptimizer(const Settings& s) {
  const std::string kOffload = "/zero_optimization/offload_optimizer/";
  return {.tier = TierOf(s.Text(kOffload + "device")),
          .nvme_path = s.Text(kOffload + "nvme_path"),
          .buffer_count = s.Int(kOffload + "buffer_count"),
          .pipeline_read = s.Is(kOffload + "pipeline_read"),
          .pipeline_write = s.Is(kOffload + "pipeline_write"),
          .ratio = s.Number(kOffload + "ratio")};
}

OffloadParamConfig ReadOffloadParam(const Settings& s) {
  const std::string kOffload = "/zero_optimization/offload_param/";
  return {.tier = TierOf(s.Text(kOffload + "device")),
          .nvme_path = s.Text(kOffload + "nvme_path"),
          .buffer_count = s.Int(kOffload + "buffer_count"),
          .buffer_size = s.Int(kOffload + "buffer_size"),
          .max_in_cpu = s.Int(kOffload + "max_in_cpu")};
}

AioOptions ReadAio(const Settings& s) {
  return {.block_size = s.Int("/aio/block_size"),
          .queue_depth = static_cast<int>(s.Int("/aio/queue_depth")),
          .intra_op_parallelism = static_cast<int>(s.Int("/aio/intra_op_parallelism")),
          .single_submit = s.Is("/aio/single_submit"),
          .overlap_events = s.Is("/aio/overlap_events")};
}

// Any key of DeepSpeed's block asks for checkpointing; there the model's code decides how often.
ActivationConfig ReadActivation(const Settings& s) {
  const std::string kBlock = "/activation_checkpointing/";
  ActivationConfig activation;
  activation.checkpoint_interval = s.Int("/pipeline/activation_checkpoint_interval");
  activation.checkpoints_on_host = s.Is(kBlock + "cpu_checkpointing");
  activation.keeps_outputs = s.Is(kBlock + "keep_norms_and_activations");
  if (s.Given(kBlock + "number_checkpoints") != nullptr) {
    activation.num_checkpoints = s.Int(kBlock + "number_checkpoints");
  } else if (activation.checkpoints_on_host && activation.checkpoint_interval == 0) {
    activation.checkpoint_interval = 1;
  }
  return activation;
}

MonitorConfig ReadMonitor(const Settings& s, const std::string& section) {
  return {.enabled = s.Is(section + "/enabled"),
          .output_path = s.Text(section + "/output_path"),
          .job_name = s.Text(section + "/job_name")};
}

PipelineConfig ReadPipeline(const Settings& s) {
  return {.num_stages = static_cast<int>(s.Int("/pipeline/stages")),
          .partition = s.Text("/pipeline/partition")};
}

// Prescaled gradients are divided by all ranks before they are summed, others by the factor. A sum
// is left alone.
double ReadPredivision(const Settings& s, const DsConfig& config) {
  if (!config.average_gradients) return 1;
  if (!s.Is("/prescale_gradients")) return s.Number("/gradient_predivide_factor");
  const BatchSizes& batch = config.batch;
  return static_cast<double>(batch.train_batch_size) /
         static_cast<double>(batch.micro_batch_size * batch.accumulation_steps);
}

ZeroConfig ReadZero(const Settings& s) {
  const std::string kZero = "/zero_optimization/";
  ZeroConfig zero;
  zero.stage = s.stage();
  zero.reduce_scatter = s.Is(kZero + "reduce_scatter");
  zero.overlap_comm = s.Is(kZero + "overlap_comm");
  zero.reduce_bucket_size = s.Int(kZero + "reduce_bucket_size");
  zero.allgather_bucket_size = s.Int(kZero + "allgather_bucket_size");
  zero.stage3_prefetch_bucket_size = s.Int(kZero + "stage3_prefetch_bucket_size");
  zero.stage3_param_persistence_threshold = s.Int(kZero + "stage3_param_persistence_threshold");
  zero.stage3_max_live_parameters = s.Int(kZero + "stage3_max_live_parameters");
  zero.gather_16bit_weights_on_model_save =
      s.Is(kZero + "stage3_gather_16bit_weights_on_model_save");
  zero.stage3_max_reuse_distance = s.Int(kZero + "stage3_max_reuse_distance");
  zero.stage3_model_persistence_threshold = s.Int(kZero + "stage3_model_persistence_threshold");
  zero.allgather_partitions = s.Is(kZero + "allgather_partitions");
  zero.sub_group_size = s.Int(kZero + "sub_group_size");
  zero.offload_optimizer = ReadOffloadOptimizer(s);
  zero.offload_param = ReadOffloadParam(s);
  // Offloaded gradients of stages 1 and 2 are contiguous in any case.
  const bool offloads = zero.stage < 3 && zero.offload_optimizer.tier != Tier::kDevice;
  zero.contiguous_gradients = s.Is(kZero + "contiguous_gradients") || offloads;
  return zero;
}

OptimizerConfig ReadOptimizer(const Settings& s, const std::string& source,
                              std::vector<std::string>* warnings) {
  const std::string kParams = "/optimizer/params/";
  OptimizerConfig optimizer;
  optimizer.lr = s.Number(kParams + "lr");
  optimizer.weight_decay = s.Number(kParams + "weight_decay");
  optimizer.decay_norms_and_biases = s.Is(kParams + "decay_norms_and_biases");
  std::string type = s.Lower("/optimizer/type");
  if (type.empty()) {
    warnings->push_back(
        fmt::format("{}: /optimizer/type is not given: AdamW with lr {}", source, optimizer.lr));
  } else {
    optimizer.type = type;
  }
  Json betas = s.Get(kParams + "betas");
  optimizer.beta1 = betas[0];
  optimizer.beta2 = betas[1];
  optimizer.eps = s.Number(kParams + "eps");
  optimizer.bias_correction = s.Is(kParams + "bias_correction");
  optimizer.adam_w_mode = optimizer.type == "adamw" || s.Is(kParams + "adam_w_mode");
  optimizer.stochastic_rounding = s.Is(kParams + "stochastic_rounding");
  if (optimizer.stochastic_rounding && !s.Is("/bf16/enabled")) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: {}stochastic_rounding is true; expected false unless /bf16/enabled is: bf16 "
          "parameters are what it rounds",
          source, kParams);
  }
  optimizer.momentum = s.Number(kParams + "momentum");
  optimizer.dampening = s.Number(kParams + "dampening");
  optimizer.nesterov = s.Is(kParams + "nesterov");
  optimizer.max_coeff = s.Number(kParams + "max_coeff");
  optimizer.min_coeff = s.Number(kParams + "min_coeff");
  optimizer.freeze_step = s.Int(kParams + "freeze_step");
  optimizer.lr_decay = s.Number(kParams + "lr_decay");
  return optimizer;
}

// The rules accept "auto" for whoever fills it in, which the built-in engine does not.
void RequireNumbers(const Settings& s, const std::string& source) {
  const std::string kParams = "/scheduler/params/";
  const auto require = [&](const char* types, const char* name) {
    const std::string pointer = kParams + name;
    if (!IsOneOf(s.Text("/scheduler/type"), types) || s.Given(pointer) != nullptr) return;
    Throw(ErrorCode::kInvalidArgument,
          "{}: {} is \"auto\"; the built-in engine expects a number, since the schedule is {}",
          source, pointer, s.Text("/scheduler/type"));
  };
  require("WarmupDecayLR WarmupCosineLR", "total_num_steps");
  require("OneCycle", "cycle_min_lr");
  require("OneCycle", "cycle_max_lr");
}

// The defaults that stand for values of "auto", except for batch sizes, which are inferred.
void WarnOfAuto(const Settings& s, const std::string& source, std::vector<std::string>* warnings) {
  for (const Key& key : s.keys()) {
    const bool is_batch = std::string_view(key.pointer).find("batch_size") != std::string::npos ||
                          std::string_view(key.pointer) == "/gradient_accumulation_steps";
    if (is_batch || !s.Has(key.pointer) || s.Given(key.pointer) != nullptr) continue;
    if (IsAuto(s.Get(key.pointer))) continue;  // The default of the key.
    warnings->push_back(
        fmt::format("{}: {} is \"auto\", which the built-in engine takes as the default, {}",
                    source, key.pointer, s.Get(key.pointer).dump()));
  }
}

OneCycleConfig ReadOneCycle(const Settings& s) {
  const std::string kParams = "/scheduler/params/";
  // The second half is as the first if nothing else is said.
  const auto second = [&](const char* name, int64_t first) {
    return s.Given(kParams + name) == nullptr ? first : s.Int(kParams + name);
  };
  OneCycleConfig cycle;
  if (s.Text("/scheduler/type") != "OneCycle") return cycle;
  cycle.min_lr = s.Number(kParams + "cycle_min_lr");
  cycle.max_lr = s.Number(kParams + "cycle_max_lr");
  cycle.decay_lr_rate = s.Number(kParams + "decay_lr_rate");
  cycle.first_step_size = s.Int(kParams + "cycle_first_step_size");
  cycle.second_step_size = second("cycle_second_step_size", cycle.first_step_size);
  cycle.first_stair_count = s.Int(kParams + "cycle_first_stair_count");
  cycle.second_stair_count = second("cycle_second_stair_count", cycle.first_stair_count);
  cycle.decay_step_size = s.Int(kParams + "decay_step_size");
  cycle.cycle_momentum = s.Is(kParams + "cycle_momentum");
  cycle.min_mom = s.Number(kParams + "cycle_min_mom");
  cycle.max_mom = s.Number(kParams + "cycle_max_mom");
  cycle.decay_mom_rate = s.Number(kParams + "decay_mom_rate");
  return cycle;
}

SchedulerConfig ReadScheduler(const Settings& s, double lr) {
  const std::string kParams = "/scheduler/params/";
  SchedulerConfig scheduler;
  scheduler.type = s.Text("/scheduler/type");
  scheduler.warmup_min_lr = s.Number(kParams + "warmup_min_lr");
  const Json max_lr = s.Get(kParams + "warmup_max_lr");
  if (max_lr.is_number()) {
    scheduler.warmup_max_lr = max_lr.get<double>();
  } else if (scheduler.type == "WarmupLR") {
    scheduler.warmup_max_lr = lr;
  }
  // DeepSpeed raises 1 to 2: the logarithmic form divides by ln(steps).
  scheduler.warmup_num_steps = std::max<int64_t>(2, s.Int(kParams + "warmup_num_steps"));
  scheduler.warmup_linear = s.Text(kParams + "warmup_type") == "linear";
  const Json* total = s.Given(kParams + "total_num_steps");
  if (total != nullptr) scheduler.total_num_steps = total->get<int64_t>();
  scheduler.warmup_min_ratio = s.Number(kParams + "warmup_min_ratio");
  scheduler.cos_min_ratio = s.Number(kParams + "cos_min_ratio");
  scheduler.one_cycle = ReadOneCycle(s);
  scheduler.range_test.min_lr = s.Number(kParams + "lr_range_test_min_lr");
  scheduler.range_test.step_rate = s.Number(kParams + "lr_range_test_step_rate");
  scheduler.range_test.step_size = s.Int(kParams + "lr_range_test_step_size");
  scheduler.range_test.staircase = s.Is(kParams + "lr_range_test_staircase");
  scheduler.last_batch_iteration = s.Int(kParams + "last_batch_iteration");
  return scheduler;
}

Fp16Config ReadFp16(const Settings& s) {
  Fp16Config fp16;
  fp16.enabled = s.Is("/fp16/enabled");
  fp16.loss_scale = s.Number("/fp16/loss_scale");
  fp16.initial_scale_power = s.Int("/fp16/initial_scale_power");
  fp16.loss_scale_window = s.Int("/fp16/loss_scale_window");
  fp16.hysteresis = s.Int("/fp16/hysteresis");
  fp16.consecutive_hysteresis = s.Is("/fp16/consecutive_hysteresis");
  fp16.min_loss_scale = s.Number("/fp16/min_loss_scale");
  return fp16;
}

}  // namespace

Default::operator bool() const {
  return ValueAt(pointer_, index_);
}
Default::operator int() const {
  return ValueAt(pointer_, index_);
}
Default::operator int64_t() const {
  return ValueAt(pointer_, index_);
}
Default::operator double() const {
  return ValueAt(pointer_, index_);
}
Default::operator std::string() const {
  return ValueAt(pointer_, index_);
}

DsConfig ParseDsConfig(const Json& ds_config, const std::string& source, int64_t world_size,
                       std::vector<std::string>* warnings) {
  return ParseDsConfig(ds_config, source, world_size, warnings, Keys());
}

DsConfig ParseOnRank(const Json& ds_config, const std::string& source, int rank, int world_size) {
  std::vector<std::string> warnings;
  DsConfig parsed = ParseDsConfig(ds_config, source, world_size, &warnings);
  if (rank != 0) return parsed;
  for (const std::string& warning : warnings)
    Log(LogLevel::kWarn, warning);
  return parsed;
}

DsConfig ParseDsConfig(const Json& ds_config, const std::string& source, int64_t world_size,
                       std::vector<std::string>* warnings, const KeyTable& keys) {
  CheckedConfig checked = CheckDsConfig(ds_config, source, world_size, keys);
  const Settings& settings = checked.settings;
  std::vector<std::string>& found = checked.warnings;
  CheckBuiltin(settings, source, &found);
  RequireNumbers(settings, source);
  WarnOfAuto(settings, source, &found);
  CheckBf16State(settings, source);
  DsConfig config;
  config.batch = checked.batch;
  config.bf16 = settings.Is("/bf16/enabled");
  config.check_grad_overflow = settings.Is("/bf16/check_grad_overflow") || !config.bf16;
  config.bf16_master_weights_and_grads = settings.Is("/bf16/bf16_master_weights_and_grads");
  config.bf16_optimizer_states = settings.Is("/bf16/bf16_optimizer_states");
  config.fp16 = ReadFp16(settings);
  config.gradient_clipping = settings.Number("/gradient_clipping");
  if (settings.Given("/steps_per_print") != nullptr) {
    config.steps_per_print = settings.Int("/steps_per_print");
  }
  config.csv_monitor = ReadMonitor(settings, "/csv_monitor");
  config.tensorboard = ReadMonitor(settings, "/tensorboard");
  config.seed = settings.Int("/seed");
  config.average_gradients = settings.Text("/gradient_allreduce_op") != "sum";
  config.gradient_predivide_factor = ReadPredivision(settings, config);
  config.communication_type = ReadType(settings, "/communication_data_type");
  config.grad_accum_type = ReadType(settings, "/data_types/grad_accum_dtype");
  config.zero = ReadZero(settings);
  config.activation = ReadActivation(settings);
  config.pipeline = ReadPipeline(settings);
  config.aio = ReadAio(settings);
  config.optimizer = ReadOptimizer(settings, source, &found);
  config.scheduler = ReadScheduler(settings, config.optimizer.lr);
  if (warnings != nullptr) warnings->insert(warnings->end(), found.begin(), found.end());
  return config;
}

}  // namespace dsat::engine
