// No key is parsed and ignored: each one that the built-in engine honors changes something that
// can be seen from outside, and each one that it does not is refused or named in a warning.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "base/files.h"
#include "engine/config/keys.h"
#include "engine/config/settings.h"
#include "engine/runtime/initialize.h"
#include "engine/runtime/predict.h"
#include "tests/engine/config/ds_config_testing.h"
#include "tests/engine/plan/plan_text.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

constexpr int kNumSteps = 10;

// Where a key's effect is looked for.
enum class Look {
  kMemory,   // Bytes of device and host memory.
  kTraffic,  // Messages between ranks.
  kTiers,    // Bytes to and from host memory and disk.
  kPlan,     // The list of instructions.
  kSteps,    // Losses, learning rates, loss scales and skips of a real training.
  kRefusal,  // One of the two configs is refused or stopped, naming the key.
  kSave,     // The answer of Save16BitModel.
};

struct Effect {
  const char* pointer;
  Look look;
  const char* base;   // Merged into kBase.
  const char* value;  // The key's value, in place of the base's or the default.
  int num_ranks = 2;
};

constexpr char kBase[] =
    "{'train_micro_batch_size_per_gpu': 2, 'gradient_clipping': 0,"
    " 'optimizer': {'type': 'AdamW', 'params': {'lr': 0.01}}}";
constexpr char kSgd[] = "{'optimizer': {'type': 'SGD', 'params': {'momentum': 0.9}}}";
constexpr char kLamb[] = "{'optimizer': {'type': 'Lamb'}}";
constexpr char kWarmup[] =
    "{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_max_lr': 0.01,"
    " 'warmup_num_steps': 4}}}";
constexpr char kDecay[] =
    "{'scheduler': {'type': 'WarmupDecayLR', 'params':"
    " {'warmup_num_steps': 2, 'total_num_steps': 10}}}";
constexpr char kCosine[] =
    "{'scheduler': {'type': 'WarmupCosineLR', 'params':"
    " {'warmup_num_steps': 3, 'total_num_steps': 7}}}";
constexpr char kCycle[] =
    "{'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0.001,"
    " 'cycle_max_lr': 0.01, 'cycle_first_step_size': 3,"
    " 'decay_step_size': 1}}}";
constexpr char kRange[] =
    "{'scheduler': {'type': 'LRRangeTest', 'params':"
    " {'lr_range_test_step_size': 2}}}";
constexpr char kStage1[] = "{'zero_optimization': {'stage': 1}}";
constexpr char kStage2[] = "{'zero_optimization': {'stage': 2}}";
constexpr char kStage3[] =
    "{'zero_optimization': {'stage': 3, 'overlap_comm': false,"
    " 'stage3_param_persistence_threshold': 0, 'stage3_prefetch_bucket_size': 0}}";
constexpr char kOnHost[] =
    "{'zero_optimization': {'stage': 3, 'overlap_comm': false,"
    " 'offload_optimizer': {'device': 'cpu'}}}";
constexpr char kOnDisk[] =
    "{'zero_optimization': {'stage': 2, 'sub_group_size': 1000,"
    " 'offload_optimizer': {'device': 'nvme', 'nvme_path': '/tmp'}}}";
constexpr char kOnDiskAhead[] =
    "{'zero_optimization': {'stage': 2, 'sub_group_size': 1000, 'offload_optimizer':"
    " {'device': 'nvme', 'nvme_path': '/tmp', 'pipeline_read': true}}}";
constexpr char kParamOnDisk[] =
    "{'zero_optimization': {'stage': 3, 'overlap_comm': false,"
    " 'stage3_param_persistence_threshold': 0,"
    " 'offload_param': {'device': 'nvme', 'nvme_path': '/tmp', 'max_in_cpu': 0}}}";
constexpr char kManySamples[] = "{'train_micro_batch_size_per_gpu': 32}";
constexpr char kBf16[] = "{'bf16': {'enabled': true}, 'gradient_accumulation_steps': 2}";
constexpr char kBf16OnHost[] =
    "{'bf16': {'enabled': true},"
    " 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}";
constexpr char kBf16MasterOnHost[] =
    "{'bf16': {'enabled': true, 'bf16_master_weights_and_grads': true},"
    " 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}";
constexpr char kFp16[] = "{'fp16': {'enabled': true}}";
constexpr char kOverflow[] = "{'fp16': {'enabled': true, 'initial_scale_power': 40}}";

constexpr Effect kEffects[] = {
    {"/train_batch_size", Look::kSteps, "{}", "8"},
    {"/train_micro_batch_size_per_gpu", Look::kMemory, "{}", "4"},
    {"/gradient_accumulation_steps", Look::kSteps, "{}", "2"},

    {"/optimizer/type", Look::kMemory, "{}", "'Lion'"},
    {"/optimizer/params/lr", Look::kSteps, "{}", "0.02"},
    {"/optimizer/params/weight_decay", Look::kSteps, "{}", "0.1"},
    {"/optimizer/params/decay_norms_and_biases", Look::kSteps,
     "{'optimizer': {'params': {'weight_decay': 0.1}}}", "false"},
    {"/optimizer/params/betas", Look::kSteps, "{}", "[0.5, 0.9]"},
    {"/optimizer/params/eps", Look::kSteps, "{}", "0.1"},
    {"/optimizer/params/bias_correction", Look::kSteps, "{}", "false"},
    {"/optimizer/params/adam_w_mode", Look::kSteps,
     "{'optimizer': {'type': 'Adam', 'params': {'weight_decay': 0.1}}}", "false"},
    {"/optimizer/params/stochastic_rounding", Look::kSteps, kBf16, "true"},
    {"/optimizer/params/momentum", Look::kSteps, kSgd, "0.5"},
    {"/optimizer/params/dampening", Look::kSteps, kSgd, "0.5"},
    {"/optimizer/params/nesterov", Look::kSteps, kSgd, "true"},
    {"/optimizer/params/max_coeff", Look::kSteps, kLamb, "0.02"},
    {"/optimizer/params/min_coeff", Look::kSteps, kLamb, "5"},
    {"/optimizer/params/lr_decay", Look::kSteps, "{'optimizer': {'type': 'Adagrad'}}", "0.5"},
    {"/optimizer/params/freeze_step", Look::kSteps, "{'optimizer': {'type': 'OneBitAdam'}}", "2"},
    {"/zero_allow_untested_optimizer", Look::kRefusal,
     "{'optimizer': {'type': 'SGD'}, 'zero_optimization': {'stage': 1}}", "true"},

    {"/scheduler/type", Look::kSteps, "{}", "'WarmupLR'"},
    {"/scheduler/params/last_batch_iteration", Look::kSteps, kWarmup, "1"},
    {"/scheduler/params/warmup_min_lr", Look::kSteps, kWarmup, "0.005"},
    {"/scheduler/params/warmup_max_lr", Look::kSteps, kWarmup, "0.02"},
    {"/scheduler/params/warmup_num_steps", Look::kSteps, kWarmup, "3"},
    {"/scheduler/params/warmup_type", Look::kSteps, kWarmup, "'linear'"},
    {"/scheduler/params/total_num_steps", Look::kSteps, kDecay, "20"},
    {"/scheduler/params/warmup_min_ratio", Look::kSteps, kCosine, "0.5"},
    {"/scheduler/params/cos_min_ratio", Look::kSteps, kCosine, "0.5"},
    {"/scheduler/params/cycle_min_lr", Look::kSteps, kCycle, "0.002"},
    {"/scheduler/params/cycle_max_lr", Look::kSteps, kCycle, "0.02"},
    {"/scheduler/params/decay_lr_rate", Look::kSteps, kCycle, "0.5"},
    {"/scheduler/params/cycle_first_step_size", Look::kSteps, kCycle, "2"},
    {"/scheduler/params/cycle_second_step_size", Look::kSteps, kCycle, "2"},
    {"/scheduler/params/cycle_first_stair_count", Look::kSteps, kCycle, "1"},
    {"/scheduler/params/cycle_second_stair_count", Look::kSteps, kCycle, "1"},
    {"/scheduler/params/decay_step_size", Look::kSteps,
     "{'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0.001, 'cycle_max_lr': 0.01,"
     " 'cycle_first_step_size': 2, 'decay_lr_rate': 0.5}}}",
     "1"},
    {"/scheduler/params/cycle_momentum", Look::kSteps, kCycle, "false"},
    {"/scheduler/params/cycle_min_mom", Look::kSteps, kCycle, "0.5"},
    {"/scheduler/params/cycle_max_mom", Look::kSteps, kCycle, "0.95"},
    {"/scheduler/params/decay_mom_rate", Look::kSteps, kCycle, "0.01"},
    {"/scheduler/params/lr_range_test_min_lr", Look::kSteps, kRange, "0.002"},
    {"/scheduler/params/lr_range_test_step_size", Look::kSteps, kRange, "3"},
    {"/scheduler/params/lr_range_test_step_rate", Look::kSteps, kRange, "2"},
    {"/scheduler/params/lr_range_test_staircase", Look::kSteps, kRange, "true"},

    {"/gradient_clipping", Look::kSteps, kSgd, "0.1"},
    // Thirds round.
    {"/prescale_gradients", Look::kSteps, kSgd, "true", 3},
    {"/gradient_predivide_factor", Look::kSteps, kSgd, "3"},
    {"/gradient_allreduce_op", Look::kSteps, kSgd, "'sum'"},
    {"/communication_data_type", Look::kTraffic, kBf16, "'fp32'"},
    {"/data_types/grad_accum_dtype", Look::kMemory, kBf16, "'fp32'"},

    {"/zero_optimization/stage", Look::kMemory, "{}", "1"},
    {"/zero_optimization/contiguous_gradients", Look::kTraffic, kStage2, "false"},
    {"/zero_optimization/reduce_scatter", Look::kTraffic, kStage2, "false"},
    {"/zero_optimization/reduce_bucket_size", Look::kTraffic, kStage2, "4096"},
    {"/zero_optimization/allgather_partitions", Look::kTraffic, kStage2, "false"},
    {"/zero_optimization/allgather_bucket_size", Look::kTraffic, kStage2, "4096"},
    {"/zero_optimization/overlap_comm", Look::kMemory,
     "{'zero_optimization': {'stage': 2, 'reduce_bucket_size': 4096}}", "true"},
    {"/zero_optimization/sub_group_size", Look::kPlan, kStage1, "500"},
    {"/zero_optimization/stage3_prefetch_bucket_size", Look::kTraffic, kStage3, "100000"},
    {"/zero_optimization/stage3_param_persistence_threshold", Look::kTraffic, kStage3, "100000"},
    {"/zero_optimization/stage3_model_persistence_threshold", Look::kTraffic,
     "{'zero_optimization': {'stage': 3}}", "0"},
    {"/zero_optimization/stage3_max_live_parameters", Look::kTraffic, kStage3, "1"},
    {"/zero_optimization/stage3_max_reuse_distance", Look::kTraffic, kStage3, "0"},
    {"/zero_optimization/stage3_gather_16bit_weights_on_model_save", Look::kSave, kStage3, "true"},
    {"/zero_optimization/offload_optimizer/device", Look::kTiers, kStage2, "'cpu'"},
    {"/zero_optimization/offload_optimizer/nvme_path", Look::kRefusal, kOnDisk, "'/no/such'"},
    {"/zero_optimization/offload_optimizer/buffer_count", Look::kMemory, kOnDiskAhead, "12"},
    {"/zero_optimization/offload_optimizer/pipeline_read", Look::kMemory, kOnDisk, "true"},
    {"/zero_optimization/offload_optimizer/pipeline_write", Look::kMemory, kOnDisk, "true"},
    {"/zero_optimization/offload_optimizer/ratio", Look::kTiers, kOnHost, "0.5"},
    {"/zero_optimization/offload_param/device", Look::kTiers, kStage3, "'cpu'"},
    {"/zero_optimization/offload_param/nvme_path", Look::kRefusal, kParamOnDisk, "'/no/such'"},
    {"/zero_optimization/offload_param/buffer_count", Look::kMemory, kParamOnDisk, "1"},
    {"/zero_optimization/offload_param/buffer_size", Look::kRefusal, kParamOnDisk, "16"},
    {"/zero_optimization/offload_param/max_in_cpu", Look::kTiers, kParamOnDisk, "4000"},

    {"/bf16/enabled", Look::kMemory, "{}", "true"},
    {"/bf16/bf16_master_weights_and_grads", Look::kMemory, kBf16OnHost, "true"},
    {"/bf16/bf16_optimizer_states", Look::kMemory, kBf16MasterOnHost, "true"},
    {"/bf16/check_grad_overflow", Look::kSteps,
     "{'bf16': {'enabled': true}, 'optimizer': {'type': 'SGD', 'params': {'lr': 1e30}}}", "false"},
    {"/fp16/enabled", Look::kMemory, "{}", "true"},
    {"/fp16/loss_scale", Look::kSteps, kFp16, "64"},
    {"/fp16/initial_scale_power", Look::kSteps, kFp16, "10"},
    {"/fp16/loss_scale_window", Look::kSteps,
     "{'fp16': {'enabled': true,"
     " 'initial_scale_power': 4}}",
     "2"},
    {"/fp16/hysteresis", Look::kSteps, kOverflow, "1"},
    {"/fp16/min_loss_scale", Look::kRefusal, kOverflow, "1e12"},

    {"/activation_checkpointing/cpu_checkpointing", Look::kTiers, "{}", "true"},
    {"/activation_checkpointing/number_checkpoints", Look::kMemory, kManySamples, "1"},
    {"/activation_checkpointing/keep_norms_and_activations", Look::kMemory, kManySamples, "true"},
    {"/pipeline/stages", Look::kMemory, "{}", "2"},
    {"/pipeline/partition", Look::kPlan, "{'pipeline': {'stages': 3}}", "'uniform'", 3},
    {"/pipeline/activation_checkpoint_interval", Look::kMemory, kManySamples, "1"},

    {"/aio/block_size", Look::kTiers, kOnDisk, "4096"},
    {"/seed", Look::kSteps, "{}", "7"},
};

// Keys whose effect cannot be seen from an engine, and the tests that show it.
struct Elsewhere {
  const char* pointer;
  const char* file;
  const char* test;
};

constexpr const char* kRecords = "tests/engine/worker/training_records_test.cc";
constexpr Elsewhere kElsewhere[] = {
    // Needs overflows and good steps by turns.
    {"/fp16/consecutive_hysteresis", "tests/engine/runtime/optimizer/loss_scaler_test.cc",
     "TEST(LossScalerTest, MovesStepByStepAsDeepSpeeds)"},
    {"/aio/queue_depth", "tests/engine/io/aio_worker_test.cc",
     "TEST(AioWorkerTest, NoMoreBlocksAreInFlightThanTheQueueIsDeep)"},
    {"/aio/single_submit", "tests/engine/io/aio_worker_test.cc",
     "TEST(AioWorkerTest, NoMoreBlocksAreInFlightThanTheQueueIsDeep)"},
    {"/aio/overlap_events", "tests/engine/io/aio_worker_test.cc",
     "TEST(AioWorkerTest, ABlockStartsWhenOneIsDoneOrWhenAllAre)"},
    {"/aio/intra_op_parallelism", "tests/engine/io/aio_worker_test.cc",
     "TEST(AioWorkerTest, EveryWorkerHasThreadsOfItsOwn)"},
    {"/steps_per_print", "tests/engine/worker/trial_test.cc",
     "TEST_F(TrialTest, TrainingSavesACheckpointAndContinuesFromIt)"},
    {"/csv_monitor/enabled", kRecords,
     "TEST_F(TrainingRecordsTest, CsvFilesHaveEveryStepOnceAcrossRuns)"},
    {"/csv_monitor/output_path", kRecords,
     "TEST_F(TrainingRecordsTest, CsvFilesHaveEveryStepOnceAcrossRuns)"},
    {"/csv_monitor/job_name", kRecords,
     "TEST_F(TrainingRecordsTest, CsvFilesHaveEveryStepOnceAcrossRuns)"},
    {"/tensorboard/enabled", kRecords,
     "TEST_F(TrainingRecordsTest, AFolderOfAMonitorThatCannotBeMadeIsNamedBeforeTheFirstStep)"},
    {"/tensorboard/output_path", kRecords,
     "TEST_F(TrainingRecordsTest, AFolderOfAMonitorThatCannotBeMadeIsNamedBeforeTheFirstStep)"},
    {"/tensorboard/job_name", kRecords,
     "TEST_F(TrainingRecordsTest, AFolderOfAMonitorThatCannotBeMadeIsNamedBeforeTheFirstStep)"},
};

std::string FormatSteps(const std::vector<StepResult>& steps) {
  std::string text;
  for (const StepResult& step : steps) {
    text += fmt::format("[loss {:a} norm {:a} lr {:a} scale {} skipped {}]", step.loss,
                        step.grad_norm, step.lr, step.loss_scale, step.skipped);
  }
  return text;
}

// The text that rank 0 sees of `fn` on an engine made of the config as a user's program makes it.
std::string OnEngine(const Json& config, int num_ranks,
                     const std::function<std::string(Engine&)>& fn) {
  std::string seen;
  RunRanks(num_ranks, [&](ProcessGroup& world) {
    const auto training = Initialize(world, {.model = TinyGpt2(),
                                             .config = {config, "ds.json"},
                                             .device = MakeCpuDevice(1),
                                             .dataset = Synthetic(),
                                             .seq_len = kSeqLen});
    const std::string mine = fn(training->engine());
    if (world.rank() == 0) seen = mine;
  });
  return seen;
}

std::string Train(Engine& engine) {
  std::vector<StepResult> steps;
  for (int step = 0; step < kNumSteps; ++step)
    steps.push_back(engine.TrainBatch());
  return FormatSteps(steps);
}

std::string Save(Engine& engine) {
  return engine.Save16BitModel(testing::TempDir() + "/key_effects") ? "saved" : "not saved";
}

std::string Counted(const Prediction& p, Look look) {
  if (look == Look::kMemory) {
    return fmt::format("peak {} host {} state {}", p.peak_bytes, p.host_peak_bytes, p.state_bytes);
  }
  if (look == Look::kTraffic) {
    return fmt::format("{} collectives {} bytes", p.step_traffic.num_collectives,
                       p.step_traffic.sent_bytes);
  }
  return fmt::format("down {} up {} requests {} read {}", p.tier_traffic.to_host_bytes,
                     p.tier_traffic.to_device_bytes, p.disk_traffic.num_requests,
                     p.disk_traffic.read_bytes);
}

std::string Seen(Look look, const Json& config, int num_ranks) {
  if (look == Look::kSteps || look == Look::kRefusal) return OnEngine(config, num_ranks, Train);
  if (look == Look::kSave) return OnEngine(config, num_ranks, Save);
  const DsConfig parsed = ParseDsConfig(config, "ds.json", num_ranks, nullptr);
  const Model model = TinyGpt2();
  if (look == Look::kPlan) return PlanText(PlanFor(model, parsed, num_ranks));
  return Counted(Predict(model, parsed, kSeqLen, 0, num_ranks, 1), look);
}

// The message, or "" if the config trains.
std::string RefusalOf(const Json& config, int num_ranks) {
  try {
    Seen(Look::kRefusal, config, num_ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Json BaseOf(const Effect& effect) {
  Json config = J(kBase);
  MergeJson(config, J(effect.base));
  return config;
}

Json ChangedOf(const Effect& effect) {
  Json config = BaseOf(effect);
  SetAtPointer(config, effect.pointer, J(effect.value));
  return config;
}

TEST(KeyEffectsTest, EveryHonoredKeyChangesWhatTheEngineDoes) {
  for (const Effect& effect : kEffects) {
    SCOPED_TRACE(effect.pointer);
    const Json base = BaseOf(effect);
    const Json changed = ChangedOf(effect);
    ASSERT_NE(base, changed);
    if (effect.look == Look::kRefusal) {
      const std::string before = RefusalOf(base, effect.num_ranks);
      const std::string after = RefusalOf(changed, effect.num_ranks);
      EXPECT_NE(before.empty(), after.empty()) << before << after;
      const std::string named = std::string_view(effect.pointer).ends_with("nvme_path")
                                    ? J(effect.value).get<std::string>()
                                    : effect.pointer;
      EXPECT_THAT(before + after, testing::HasSubstr(named));
      continue;
    }
    const std::string before = Seen(effect.look, base, effect.num_ranks);
    EXPECT_EQ(Seen(effect.look, base, effect.num_ranks), before);  // It is the key, not chance.
    EXPECT_NE(Seen(effect.look, changed, effect.num_ranks), before);
  }
}

TEST(KeyEffectsTest, EveryHonoredKeyIsCovered) {
  for (const Key& key : Keys()) {
    if (key.builtin != Builtin::kHonors) continue;
    const auto is_key = [&](const auto& row) {
      return std::string_view(row.pointer) == key.pointer;
    };
    const auto covered =
        std::ranges::count_if(kEffects, is_key) + std::ranges::count_if(kElsewhere, is_key);
    EXPECT_EQ(covered, 1) << key.pointer;
  }
  for (const Elsewhere& row : kElsewhere) {
    std::string test = ReadFile(std::string(DSAT_SOURCE_DIR "/") + row.file);
    EXPECT_THAT(test, testing::HasSubstr(row.test)) << row.pointer;
  }
}

// A valid value that is not the key's default.
Json OtherValue(const Key& key) {
  const std::string choices = key.choices;
  const Json& fallback = Keys().Default(key);
  switch (key.type) {
    case KeyType::kBool:
      return fallback != Json(true);
    case KeyType::kText:
      if (choices.empty()) return "other";
      return fallback == choices.substr(0, choices.find(' '))
                 ? choices.substr(choices.rfind(' ') + 1)
                 : choices.substr(0, choices.find(' '));
    case KeyType::kInt:
      if (fallback.is_null()) return 2;
      return fallback == Json(std::numeric_limits<int64_t>::max()) ? 2
                                                                   : fallback.get<int64_t>() + 1;
    case KeyType::kNumber:
      return fallback == Json(0.5) ? 0.25 : 0.5;
    case KeyType::kOpenSection:
      return {{"any", 1}};
    default:
      return "other";
  }
}

// The engine's text about one key that it does not honor: a refusal or warnings.
std::string SaidAbout(const Key& key) {
  Json config = {{"train_micro_batch_size_per_gpu", 1}};
  const std::string type = std::string(key.variants).substr(0, std::string(key.variants).find(' '));
  SetAtPointer(config, "/optimizer/type", type.empty() ? "adam" : type == "sgd" ? "SGD" : type);
  SetAtPointer(config, key.pointer, OtherValue(key));
  std::vector<std::string> warnings;
  try {
    Parse(config, &warnings);
  } catch (const Error& error) {
    return error.what();
  }
  return fmt::format("{}", fmt::join(warnings, "\n"));
}

TEST(KeyEffectsTest, EveryOtherKeyIsRefusedOrNamedInAWarning) {
  for (const Key& key : Keys()) {
    const bool says = key.builtin == Builtin::kWarns || key.builtin == Builtin::kRefuses;
    if (!says || key.type == KeyType::kAlias) continue;
    EXPECT_THAT(SaidAbout(key), testing::HasSubstr(fmt::format("{} is ", key.pointer)));
  }
}

// An alias does what its key does.
TEST(KeyEffectsTest, EveryAliasIsItsKey) {
  for (const Key& key : Keys()) {
    if (key.type != KeyType::kAlias) continue;
    const Key& target = Keys().Target(key);
    const Json value =
        target.type == KeyType::kSection ? J("{'enabled': true}") : OtherValue(target);
    const auto with = [&](const char* pointer) {
      Json config = With("{'zero_optimization': {'stage': 3}}");
      SetAtPointer(config, pointer, value);
      return CanonicalConfig(config, Auto::kKeep, "ds.json");
    };
    EXPECT_EQ(with(key.pointer), with(target.pointer)) << key.pointer;
  }
}

}  // namespace
}  // namespace dsat::engine
