// The two answers to one question: the engine's plan, and the formulas.
#include "profiler/predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "engine/config/ds_config.h"
#include "engine/model/models.h"
#include "engine/runtime/predict.h"
#include "profiler/memory_model.h"
#include "tests/base/error_code.h"
#include "tests/profiler/small_gpt2.h"

namespace dsat {
namespace {

using engine::ConfigForTrial;

constexpr int64_t kSeqLen = 32;
constexpr int64_t kMiB = int64_t{1} << 20;

ExperimentSpec BuiltinSpec(int64_t world_size) {
  ExperimentSpec spec;
  spec.entrypoint = {"builtin"};
  spec.slots_per_trial = world_size;
  spec.hyperparameters = SmallGpt2(2);
  return spec;
}

// As dsat-trial reports it.
ModelProfile BuiltinProfile(int64_t num_threads = 1) {
  ModelProfile profile = SmallGpt2Profile(2, 6 * kMiB);
  profile.matmul_flops_per_s = 1'000'000'000;
  profile.copy_bytes_per_s = 1'000'000'000;
  profile.num_threads = num_threads;
  return profile;
}

Json Config(int stage, int64_t micro_batch, int64_t world_size) {
  return ConfigForTrial(
      {{"train_micro_batch_size_per_gpu", 1}, {"zero_optimization", {{"stage", stage}}}},
      {{"/train_micro_batch_size_per_gpu", micro_batch}}, world_size);
}

int64_t LargestPeak(const Json& ds_config, int world_size, int num_threads) {
  const engine::Model model = engine::MakeModel(SmallGpt2(2)["model"], "/model");
  const auto config = engine::ParseDsConfig(ds_config, "ds_config", world_size, nullptr);
  int64_t most = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const engine::Prediction predicted =
        engine::Predict(model, config, kSeqLen, rank, world_size, num_threads);
    most = std::max(most, predicted.run_peak_bytes);
  }
  return most;
}

TEST(PredictorTest, TheBuiltinAnswerIsThatOfTheRankThatNeedsMost) {
  for (const int world_size : {1, 2, 3, 4}) {
    for (const int num_threads : {1, 3}) {
      const auto predictor = MakePredictor(BuiltinSpec(world_size), BuiltinProfile(num_threads));
      for (int stage = 0; stage <= 3; ++stage) {
        const Json config = Config(stage, 3, world_size);
        const Estimate predicted = predictor->Predict(config);
        EXPECT_TRUE(predicted.exact);
        EXPECT_GT(predicted.step_ms, 0);
        EXPECT_EQ(predicted.device.limit_bytes, 6 * kMiB);
        EXPECT_EQ(predicted.device.peak_bytes, LargestPeak(config, world_size, num_threads))
            << world_size << " ranks, stage " << stage;
      }
    }
  }
}

TEST(PredictorTest, APipelineNeedsWhatItsLargestStageNeeds) {
  const auto predictor = MakePredictor(BuiltinSpec(4), BuiltinProfile());
  const Json base = {{"train_micro_batch_size_per_gpu", 2},
                     {"zero_optimization", {{"stage", 1}}},
                     {"gradient_accumulation_steps", 2},
                     {"pipeline", {{"stages", 2}, {"partition", "uniform"}}}};
  const Json config = ConfigForTrial(base, {}, 4);
  EXPECT_EQ(predictor->Predict(config).device.peak_bytes, LargestPeak(config, 4, 1));
}

TEST(PredictorTest, TheLargestMicroBatchFitsAndOneMoreDoesNot) {
  const auto predictor = MakePredictor(BuiltinSpec(2), BuiltinProfile());
  for (int stage = 0; stage <= 3; ++stage) {
    const int64_t largest = predictor->LargestMicroBatch(Config(stage, 1, 2));
    ASSERT_GT(largest, 1) << stage;
    EXPECT_EQ(predictor->Predict(Config(stage, largest, 2)).Misfit(), "");
    EXPECT_THAT(predictor->Predict(Config(stage, largest + 1, 2)).Misfit(),
                testing::MatchesRegex("It does not fit: a device needs 6.[0-9]+ MiB of 6.0 MiB"));
  }
}

// A command whose dry run has peaks at stages 0 and 2.
std::unique_ptr<Predictor> PredictorOfDryRun(int64_t device_memory_bytes, int64_t process_bytes) {
  ExperimentSpec spec;
  spec.entrypoint = {"train.py"};
  spec.slots_per_trial = 2;
  spec.ds_config = Config(2, 4, 2);
  ModelProfile profile = {.num_params = kMiB, .trainable_num_params = kMiB};
  profile.device_memory_bytes = device_memory_bytes;
  profile.process_bytes = process_bytes;
  profile.dry_places = {{.stage = 2, .lines = {{30e6, 0}, {10e6, 1e6}}},
                        {.stage = 0, .lines = {{40e6, 2e6}}}};
  return MakePredictor(spec, profile);
}

TEST(PredictorTest, TheHighestLineOfADryRunIsThePeak) {
  const auto predictor = PredictorOfDryRun(int64_t{200'000'000}, 0);
  const auto peak = [&](const Json& config) {
    return predictor->Predict(config).device.peak_bytes;
  };
  EXPECT_TRUE(predictor->Predict(Config(2, 4, 2)).tracked);
  EXPECT_EQ(peak(Config(2, 4, 2)), 30'000'000);
  EXPECT_EQ(peak(Config(2, 50, 2)), 60'000'000);
  EXPECT_EQ(peak(Config(0, 50, 2)), 140'000'000);
  EXPECT_EQ(predictor->LargestMicroBatch(Config(2, 1, 2)), 190);
  EXPECT_EQ(predictor->LargestMicroBatch(Config(0, 1, 2)), 80);
}

TEST(PredictorTest, FormulasSayHowOtherPlacesDifferFromThoseThatRanDry) {
  const auto predictor = PredictorOfDryRun(int64_t{200'000'000}, 0);
  Json offloaded = Config(2, 50, 2);
  offloaded["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
  // The master copy, two moments and the gradients of half of the parameters; a bucket of them is
  // there for the device's part of the copy.
  const int64_t gone = 60'000'000 - predictor->Predict(offloaded).device.peak_bytes;
  EXPECT_EQ(gone, (12 + 4) * kMiB / 2);
}

TEST(PredictorTest, ADryRunGivesTheTimesOfAStep) {
  ExperimentSpec spec;
  spec.entrypoint = {"train.py"};
  spec.slots_per_trial = 2;
  spec.ds_config = Config(2, 4, 2);
  ModelProfile profile = {.num_params = kMiB, .trainable_num_params = kMiB};
  profile.device_memory_bytes = 200'000'000;
  profile.link_bytes_per_s = 1'000'000'000;
  profile.trainer = {{"gradient_checkpointing", false}};
  DryPlace place = {.stage = 2, .lines = {{1, 1}}, .passes_ms = {10, 3}, .update_ms = 5};
  place.passes_sent = {0, 4e6};
  place.update_sent = {0, 2e6};
  DryPlace switched = place;
  switched.switched = true;
  switched.passes_ms = {10, 4};
  profile.dry_places = {place, switched};
  const auto predictor = MakePredictor(spec, profile);
  Json config = Config(2, 4, 2);
  config["gradient_accumulation_steps"] = 3;
  const Estimate predicted = predictor->Predict(config);
  EXPECT_DOUBLE_EQ(predicted.compute_ms, 3 * (10 + 3 * 4));
  EXPECT_DOUBLE_EQ(predicted.update_ms, 5);
  EXPECT_DOUBLE_EQ(predicted.link_ms, 3 * 4 + 2);  // Each micro-batch is reduced.
  EXPECT_DOUBLE_EQ(predicted.step_ms, 66 + 5 + 14);
  config["zero_optimization"]["overlap_comm"] = true;
  EXPECT_DOUBLE_EQ(predictor->Predict(config).step_ms, 66 + 5 + 1.4);
  config["zero_optimization"]["stage"] = 0;
  EXPECT_DOUBLE_EQ(predictor->Predict(config).link_ms, 4 + 2);
  config["dsat"]["trainer"]["gradient_checkpointing"] = true;
  EXPECT_DOUBLE_EQ(predictor->Predict(config).compute_ms, 3 * (10 + 4 * 4));
}

TEST(PredictorTest, AProcessCountsWhereItFitsTheLimit) {
  const Json config = Config(2, 50, 2);
  EXPECT_EQ(PredictorOfDryRun(200'000'000, 100'000'000)->Predict(config).device.peak_bytes,
            160'000'000);
  EXPECT_FALSE(PredictorOfDryRun(200'000'000, 100'000'000)->Predict(config).tracked);
  EXPECT_EQ(PredictorOfDryRun(200'000'000, 300'000'000)->Predict(config).device.peak_bytes,
            60'000'000);
}

TEST(PredictorTest, OffloadIsAsFastAsTheCopiesThatTheProfileHasMeasured) {
  Json config = Config(2, 1, 2);
  config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
  const ExperimentSpec spec = BuiltinSpec(2);
  for (const char* device : {"cpu", "cuda"}) {
    ModelProfile slow = BuiltinProfile();
    slow.device = device;
    if (slow.device == "cuda") {
      slow.to_host_bytes_per_s = 1'000'000'000;
      slow.to_device_bytes_per_s = 1'500'000'000;
    }
    ModelProfile fast = slow;
    for (int64_t* speed :
         {&fast.copy_bytes_per_s, &fast.to_host_bytes_per_s, &fast.to_device_bytes_per_s})
      *speed *= 2;
    for (const auto make : {MakePredictor, MakeFormulaPredictor}) {
      const double slow_ms = make(spec, slow)->Predict(config).update_ms;
      EXPECT_GT(slow_ms, 0) << device;
      EXPECT_NEAR(make(spec, fast)->Predict(config).update_ms, slow_ms / 2, 1e-9) << device;
    }
  }
}

TEST(PredictorTest, ADiskTakesTheTimeThatWasMeasuredAlsoOnAGpu) {
  ExperimentSpec spec = BuiltinSpec(1);
  ModelProfile profile = BuiltinProfile();
  profile.device = "cuda";
  Json config = Config(2, 1, 1);
  config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
  const double in_memory_ms = MakePredictor(spec, profile)->Predict(config).update_ms;
  config["zero_optimization"]["offload_optimizer"] = {{"device", "nvme"}, {"nvme_path", "/tmp"}};
  const double disk_ms = MakePredictor(spec, profile)->Predict(config).update_ms - in_memory_ms;
  EXPECT_GT(disk_ms, 0);
  spec.machine["disk"] = {{"read_bytes_per_s", 500'000'000}, {"write_bytes_per_s", 500'000'000}};
  EXPECT_NEAR(MakePredictor(spec, profile)->Predict(config).update_ms, in_memory_ms + 2 * disk_ms,
              1e-6 * disk_ms);  // Half as fast as the default.
}

TEST(PredictorTest, HostMemoryIsALimitToo) {
  ExperimentSpec spec = BuiltinSpec(1);
  Json config = Config(2, 1, 1);
  config["activation_checkpointing"] = {{"cpu_checkpointing", true}};
  const auto unlimited = MakePredictor(spec, BuiltinProfile());
  const int64_t peak_bytes = unlimited->Predict(config).rank_host.peak_bytes;
  ASSERT_GT(peak_bytes, 0);
  EXPECT_TRUE(unlimited->Predict(config).fits());
  spec.host_memory_bytes = peak_bytes;
  EXPECT_TRUE(MakePredictor(spec, BuiltinProfile())->Predict(config).fits());
  spec.host_memory_bytes = peak_bytes - 1;
  EXPECT_THAT(MakePredictor(spec, BuiltinProfile())->Predict(config).Misfit(),
              testing::HasSubstr("host memory needs"));
}

TEST(PredictorTest, FormulasAnswerWhereTheEngineHasNotMeasured) {
  const ModelProfile profile = BuiltinProfile();
  ExperimentSpec command = BuiltinSpec(2);
  command.entrypoint = {"python3", "train.py", "--deepspeed_config", "ds_config.json"};
  ExperimentSpec compat = BuiltinSpec(2);
  compat.options.compat_determined = true;
  ModelProfile elsewhere = profile;
  elsewhere.device.clear();
  const Json config = Config(1, 4, 2);
  const std::tuple<ExperimentSpec, ModelProfile, MemoryLaw> cases[] = {
      {command, profile, MemoryLaw::kDeepSpeed},
      {compat, profile, MemoryLaw::kPublished},
      {BuiltinSpec(2), elsewhere, MemoryLaw::kBuiltin}};
  for (const auto& [spec, measured, law] : cases) {
    const MemoryModel model(measured, config, 2, law);
    const auto predictor = MakePredictor(spec, measured);
    const Estimate predicted = predictor->Predict(config);
    EXPECT_FALSE(predicted.exact);
    EXPECT_EQ(predicted.device.peak_bytes, model.ForStage(1).fixed_bytes() + 4 * 100'000);
    EXPECT_EQ(predictor->LargestMicroBatch(config), model.ApproxMaxMicroBatch(1));
  }
}

TEST(PredictorTest, AModelThatCannotBeBuiltIsNamed) {
  ExperimentSpec spec = BuiltinSpec(1);
  spec.config_path = "deepspeed.yaml";
  spec.hyperparameters["model"] = {{"type", "gpt3"}};
  const Error error = ErrorOf([&] { MakePredictor(spec, BuiltinProfile()); });
  EXPECT_THAT(error.what(), testing::HasSubstr("deepspeed.yaml: /hyperparameters/model"));
}

}  // namespace
}  // namespace dsat
