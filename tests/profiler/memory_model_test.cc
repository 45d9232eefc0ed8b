// Against numbers worked out by hand; the 1.5B-parameter ones are published figures.
#include "profiler/memory_model.h"

#include <gtest/gtest.h>

#include <vector>

#include "profiler/deepspeed_memory.h"

namespace dsat {
namespace {

constexpr int64_t kGiga = 1'000'000'000;

ModelProfile Profile(int64_t params, int64_t activation, int64_t device) {
  return {.num_params = params,
          .trainable_num_params = params,
          .activation_bytes_per_sample = activation,
          .device_memory_bytes = device};
}

const Json kFp32 = Json::object();
const Json kFp16 = {{"fp16", {{"enabled", true}}}};
const Json kBf16 = {{"bf16", {{"enabled", true}}}};

Json NoBuckets(Json config) {
  config["zero_optimization"] = {{"reduce_bucket_size", 0},
                                 {"allgather_bucket_size", 0},
                                 {"stage3_prefetch_bucket_size", 0},
                                 {"stage3_max_reuse_distance", 0}};
  return config;
}

TEST(MemoryModelTest, AdamStatesOfOneAndAHalfBillionParametersAre18GBAndOnEightRanks2250MB) {
  const ModelProfile profile = Profile(3 * kGiga / 2, kGiga, 80 * kGiga);
  for (const bool compat : {false, true}) {
    const MemoryModel model(profile, kFp16, 8, compat);
    EXPECT_EQ(model.ForStage(0).optimizer_bytes, 18 * kGiga);
    EXPECT_EQ(model.ForStage(1).optimizer_bytes, 2'250'000'000);
  }
}

TEST(MemoryModelTest, SixteenBytesPerParameterAreSharedByTheStagesAsInTheZeroPaper) {
  // 7.5B parameters on 64 ranks, 16-bit: 120, 31.4, 16.6 and 1.9 GB.
  const MemoryModel model(Profile(7'500'000'000, 1, kGiga), NoBuckets(kBf16), 64, false);
  EXPECT_EQ(model.ForStage(0).fixed_bytes(), 120 * kGiga);
  EXPECT_EQ(model.ForStage(1).fixed_bytes(), 31'406'250'000);
  EXPECT_EQ(model.ForStage(2).fixed_bytes(), 16'640'625'000);
  EXPECT_EQ(model.ForStage(3).fixed_bytes(), 1'875'000'000);
}

TEST(MemoryModelTest, OffloadedStatesLeaveTheDevice) {
  Json config = NoBuckets(kBf16);
  config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}, {"ratio", 0.5}};
  config["zero_optimization"]["offload_param"] = {{"device", "cpu"}};
  const ModelProfile profile = Profile(1'000'000, 1, kGiga);
  const MemoryModel model(profile, config, 2, false);
  EXPECT_EQ(model.ForStage(0).offloaded_bytes, 0);
  EXPECT_EQ(model.ForStage(1).grad_bytes, 2'000'000) << "they are sharded at the end of a step";
  EXPECT_EQ(model.ForStage(2).optimizer_bytes, 0) << "the ratio is for stage 3";
  EXPECT_EQ(model.ForStage(2).grad_bytes, 0);
  EXPECT_EQ(model.ForStage(2).offloaded_bytes, 6'000'000);
  EXPECT_EQ(model.ForStage(3).optimizer_bytes, 3'000'000);
  EXPECT_EQ(model.ForStage(3).grad_bytes, 1'000'000) << "f32, for the half on the device";
  EXPECT_EQ(model.ForStage(3).param_bytes, 0);
  EXPECT_EQ(model.ForStage(3).offloaded_bytes, 3'000'000 + 1'000'000);
  EXPECT_EQ(MemoryModel(profile, config, 2, true).ForStage(3).offloaded_bytes, 0);
}

TEST(MemoryModelTest, WithOffloadTheStatesAreThoseOfDeepSpeedsOwnEstimates) {
  // The estimate of stage 3 adds the largest layer, which is 0 here.
  DeepSpeedSetup setup = {.total_params = 7 * kGiga, .offload_optimizer = true};
  Json config = NoBuckets(kBf16);
  config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
  const auto state_bytes = [&](int stage) {
    const MemoryModel model(Profile(7 * kGiga, 1, kGiga), config, setup.gpus_per_node, false);
    return static_cast<double>(model.ForStage(stage).fixed_bytes());
  };
  for (const int64_t num_gpus : {1, 8}) {
    setup.gpus_per_node = num_gpus;
    EXPECT_DOUBLE_EQ(state_bytes(2), DeepSpeedStage2Estimate(setup).gpu_bytes);
    EXPECT_DOUBLE_EQ(state_bytes(3), DeepSpeedStage3Estimate(setup).gpu_bytes);
  }
  setup.offload_params = true;
  config["zero_optimization"]["offload_param"] = {{"device", "cpu"}};
  EXPECT_DOUBLE_EQ(state_bytes(3), DeepSpeedStage3Estimate(setup).gpu_bytes);
}

TEST(MemoryModelTest, InFp32ThereIsNoMasterCopy) {
  const StageMemory memory = MemoryModel(Profile(1000, 1, 1), kFp32, 1, false).ForStage(0);
  EXPECT_EQ(memory.param_bytes, 4000);
  EXPECT_EQ(memory.grad_bytes, 4000);
  EXPECT_EQ(memory.optimizer_bytes, 8000);
  EXPECT_EQ(memory.buffer_bytes, 0);
}

TEST(MemoryModelTest, Bf16StatesHaveNoMasterCopyAndMomentsOfTwoBytes) {
  Json config = kBf16;
  config["bf16"]["bf16_master_weights_and_grads"] = true;
  const auto optimizer_bytes = [&](bool compat) {
    return MemoryModel(Profile(1000, 1, 1), config, 1, compat).ForStage(1).optimizer_bytes;
  };
  EXPECT_EQ(optimizer_bytes(false), 8000);
  config["bf16"]["bf16_optimizer_states"] = true;
  EXPECT_EQ(optimizer_bytes(false), 4000);
  EXPECT_EQ(optimizer_bytes(true), 8000);
}

TEST(MemoryModelTest, FrozenParametersHaveNeitherGradientsNorOptimizerStates) {
  ModelProfile profile = Profile(1000, 1, 1);
  profile.trainable_num_params = 10;
  const StageMemory memory = MemoryModel(profile, kBf16, 1, false).ForStage(0);
  EXPECT_EQ(memory.param_bytes, 2000);
  EXPECT_EQ(memory.grad_bytes, 20);
  EXPECT_EQ(memory.optimizer_bytes, 120);
}

TEST(MemoryModelTest, SgdKeepsOneMomentOrNone) {
  Json sgd = kFp32;
  sgd["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0.1}}}};
  EXPECT_EQ(MemoryModel(Profile(1000, 1, 1), sgd, 1, false).ForStage(0).optimizer_bytes, 0);
  sgd["optimizer"]["params"]["momentum"] = 0.9;
  EXPECT_EQ(MemoryModel(Profile(1000, 1, 1), sgd, 1, false).ForStage(0).optimizer_bytes, 4000);
  EXPECT_EQ(MemoryModel(Profile(1000, 1, 1), sgd, 1, true).ForStage(0).optimizer_bytes, 8000);
}

TEST(MemoryModelTest, ThePublishedFormulaTakesBf16ForFp32AndGradientsForFp32Always) {
  const StageMemory bf16 = MemoryModel(Profile(1000, 1, 1), kBf16, 2, true).ForStage(0);
  EXPECT_EQ(bf16.param_bytes, 4000);
  EXPECT_EQ(bf16.grad_bytes, 4000);
  EXPECT_EQ(bf16.optimizer_bytes, 8000);
  const StageMemory fp16 = MemoryModel(Profile(1000, 1, 1), kFp16, 2, true).ForStage(2);
  EXPECT_EQ(fp16.param_bytes, 2000);
  EXPECT_EQ(fp16.grad_bytes, 2000);
  EXPECT_EQ(fp16.optimizer_bytes, 6000);
  EXPECT_EQ(fp16.buffer_bytes, 0);
}

TEST(MemoryModelTest, BucketsAreCountedUpToTheParametersTheyCanHold) {
  Json config = kBf16;
  config["zero_optimization"] = {{"reduce_bucket_size", 100}, {"allgather_bucket_size", 3e2}};
  const MemoryModel model(Profile(1000, 1, 1), config, 2, false);
  EXPECT_EQ(model.ForStage(0).buffer_bytes, 2 * 100);
  EXPECT_EQ(model.ForStage(1).buffer_bytes, 2 * (100 + 300));
  // Stage 3 overlaps unless told otherwise, and prefetches; the prefetch bucket holds everything.
  EXPECT_EQ(model.ForStage(3).buffer_bytes, 2 * (2 * 100 + 1000));

  config["zero_optimization"]["overlap_comm"] = true;
  EXPECT_EQ(MemoryModel(Profile(1000, 1, 1), config, 2, false).ForStage(2).buffer_bytes,
            2 * (2 * 100 + 300));
  const MemoryModel defaults(Profile(1000, 1, 1), kBf16, 2, false);
  EXPECT_EQ(defaults.ForStage(1).buffer_bytes, 2 * (1000 + 1000));
  EXPECT_EQ(MemoryModel(Profile(1000, 1, 1), config, 1, false).ForStage(2).buffer_bytes, 0);
}

TEST(MemoryModelTest, WhereParametersAreShardedTwoUnitsAreWholeAtATime) {
  ModelProfile profile = Profile(1000, 1, 1);
  profile.two_units_num_params = 300;
  const MemoryModel model(profile, NoBuckets(kBf16), 2, false);
  EXPECT_EQ(model.ForStage(2).gathered_bytes, 0);
  EXPECT_EQ(model.ForStage(3).gathered_bytes, 600);
  EXPECT_EQ(model.ForStage(3).fixed_bytes(), 1000 + 1000 + 6000 + 600);
  EXPECT_EQ(MemoryModel(profile, NoBuckets(kBf16), 1, false).ForStage(3).gathered_bytes, 0);
  // With DeepSpeed's own reuse distance, 10⁹ elements, everything stays until the last backward.
  Json kept = NoBuckets(kBf16);
  kept["zero_optimization"].erase("stage3_max_reuse_distance");
  EXPECT_EQ(MemoryModel(profile, kept, 2, false).ForStage(3).gathered_bytes, 2000);
  kept["zero_optimization"]["stage3_max_live_parameters"] = 400;
  EXPECT_EQ(MemoryModel(profile, kept, 2, false).ForStage(3).gathered_bytes, 800);
  EXPECT_EQ(MemoryModel(profile, NoBuckets(kFp16), 2, true).ForStage(3).gathered_bytes, 0);
}

TEST(MemoryModelTest, SharesOfAnUnevenSizeAreRoundedUp) {
  const MemoryModel model(Profile(10, 1, 1), NoBuckets(kFp32), 3, false);
  EXPECT_EQ(model.ForStage(3).param_bytes, 14);
}

TEST(MemoryModelTest, TheLargestMicroBatchIsWhatIsLeftOverTheActivationsOfASample) {
  // 1000 fp32 parameters on one rank: 16000 bytes.
  const auto at = [](int64_t device, bool compat) {
    return MemoryModel(Profile(1000, 100, device), kFp32, 1, compat).ApproxMaxMicroBatch(1);
  };
  EXPECT_EQ(at(16'000 + 5 * 100, false), 5);
  EXPECT_EQ(at(16'000 + 5 * 100 - 1, false), 4);
  EXPECT_EQ(at(16'000 + 99, false), 0);
  EXPECT_EQ(at(15'000, false), 0);
  // The published one keeps a sample in reserve, and is never below 1.
  EXPECT_EQ(at(16'000 + 5 * 100, true), 4);
  EXPECT_EQ(at(16'000, true), 1);
  EXPECT_EQ(at(0, true), 1);
}

TEST(MemoryModelTest, HigherStagesLeaveRoomForLargerMicroBatches) {
  const MemoryModel model(Profile(1'000'000, 1000, 20'000'000), NoBuckets(kBf16), 4, false);
  for (int stage = 1; stage <= 3; ++stage) {
    EXPECT_GT(model.ApproxMaxMicroBatch(stage), model.ApproxMaxMicroBatch(stage - 1));
  }
}

TEST(MemoryModelTest, WithoutActivationsOrDeviceMemoryTheAnswerIsOne) {
  for (const bool compat : {false, true}) {
    EXPECT_EQ(MemoryModel(Profile(10, 0, kGiga), kFp32, 1, compat).ApproxMaxMicroBatch(1), 1);
    EXPECT_EQ(MemoryModel(Profile(10, 5, 0), kFp32, 1, compat).ApproxMaxMicroBatch(1), 1);
  }
}

}  // namespace
}  // namespace dsat
