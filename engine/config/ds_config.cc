// From a checked config to the typed form of the built-in engine.
#include "engine/config/ds_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "engine/config/validate.h"

namespace dsat::engine {
namespace {

// The config that this thread reads.
thread_local const Settings* being_read = nullptr;

// Members that are made meanwhile start with the values of `settings`.
class Reading {
 public:
  explicit Reading(const Settings& settings) { being_read = &settings; }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() { being_read = nullptr; }
};

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
  constexpr char kSize[] = "/tensor_parallel/autotp_size";
  if (const int64_t size = settings.Int(kSize); size > 1) {
    Throw(ErrorCode::kUnimplemented, "{}: {} is {}; the built-in engine has 0 or 1 only ({})",
          source, kSize, size, kElsewhere);
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

AioOptions ReadAio(const Settings& s) {
  return {.block_size = s.Int("/aio/block_size"),
          .queue_depth = static_cast<int>(s.Int("/aio/queue_depth")),
          .intra_op_parallelism = static_cast<int>(s.Int("/aio/intra_op_parallelism")),
          .single_submit = s.Is("/aio/single_submit"),
          .overlap_events = s.Is("/aio/overlap_events")};
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

void ReadOptimizer(const Settings& s, const std::string& source, OptimizerConfig& optimizer,
                   std::vector<std::string>* warnings) {
  const std::string type = s.Lower("/optimizer/type");
  if (type.empty()) {
    warnings->push_back(
        fmt::format("{}: /optimizer/type is not given: AdamW with lr {}", source, optimizer.lr));
  } else {
    optimizer.type = type;
  }
  optimizer.adam_w_mode |= optimizer.type == "adamw";
  if (!optimizer.stochastic_rounding || s.Is("/bf16/enabled")) return;
  Throw(ErrorCode::kInvalidArgument,
        "{}: /optimizer/params/stochastic_rounding is true; expected false unless /bf16/enabled "
        "is: bf16 parameters are what it rounds",
        source);
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

void ReadScheduler(const Settings& s, double lr, SchedulerConfig& scheduler) {
  if (scheduler.type == "WarmupLR" && s.Get("/scheduler/params/warmup_max_lr").is_null())
    scheduler.warmup_max_lr = lr;
  // DeepSpeed raises 1 to 2: the logarithmic form divides by ln(steps).
  scheduler.warmup_num_steps = std::max<int64_t>(2, scheduler.warmup_num_steps);
  scheduler.warmup_linear = s.Text("/scheduler/params/warmup_type") == "linear";
}

}  // namespace

Json FromKey::Value() const {
  static const Settings defaults(Json::object(), "");
  const Json value = (being_read == nullptr ? defaults : *being_read).Get(pointer_);
  return value.is_array() ? value.at(index_) : value;
}

FromKey::operator Tier() const {
  const std::string device = *this;
  return device == "nvme" ? Tier::kNvme : device == "cpu" ? Tier::kHost : Tier::kDevice;
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
  CheckedConfig checked = ValidateDsConfig(ds_config, source, world_size, keys);
  const Settings& settings = checked.settings;
  std::vector<std::string>& found = checked.warnings;
  CheckBuiltin(settings, source, &found);
  RequireNumbers(settings, source);
  WarnOfAuto(settings, source, &found);
  CheckBf16State(settings, source);
  const Reading reading(settings);
  DsConfig config;
  config.batch = checked.batch;
  config.check_grad_overflow |= !config.bf16;
  if (settings.Given("/steps_per_print") != nullptr) {
    config.steps_per_print = settings.Int("/steps_per_print");
  }
  config.average_gradients = settings.Text("/gradient_allreduce_op") != "sum";
  config.gradient_predivide_factor = ReadPredivision(settings, config);
  config.communication_type = ReadType(settings, "/communication_data_type");
  config.grad_accum_type = ReadType(settings, "/data_types/grad_accum_dtype");
  // Offloaded gradients of stages 1 and 2 are contiguous in any case.
  config.zero.contiguous_gradients |=
      config.zero.stage < 3 && config.zero.offload_optimizer.tier != Tier::kDevice;
  // Any key of DeepSpeed's block asks for checkpointing; there the model's code decides how often.
  ActivationConfig& activation = config.activation;
  if (activation.checkpoints_on_host && activation.num_checkpoints == 0)
    activation.checkpoint_interval = std::max<int64_t>(1, activation.checkpoint_interval);
  config.aio = ReadAio(settings);
  ReadOptimizer(settings, source, config.optimizer, &found);
  ReadScheduler(settings, config.optimizer.lr, config.scheduler);
  if (warnings != nullptr) warnings->insert(warnings->end(), found.begin(), found.end());
  return config;
}

}  // namespace dsat::engine
