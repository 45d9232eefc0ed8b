// Against numbers worked out by hand; the 1.5B-parameter ones are published figures.
#include "profiler/memory_model.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/base/error_code.h"

namespace dsat {
namespace {

using enum MemoryLaw;

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
  for (const MemoryLaw law : {kDeepSpeed, kPublished}) {
    const MemoryModel model(profile, kFp16, 8, law);
    EXPECT_EQ(model.ForStage(0).optimizer_bytes, 18 * kGiga);
    EXPECT_EQ(model.ForStage(1).optimizer_bytes, 2'250'000'000);
  }
}

TEST(MemoryModelTest, SixteenBytesPerParameterAreSharedByTheStagesAsInTheZeroPaper) {
  // 7.5B parameters on 64 ranks, 16-bit: 120, 31.4, 16.6 and 1.9 GB.
  const MemoryModel model(Profile(7'500'000'000, 1, kGiga), NoBuckets(kBf16), 64, kDeepSpeed);
  EXPECT_EQ(model.ForStage(0).fixed_bytes(), 120 * kGiga);
  EXPECT_EQ(model.ForStage(1).fixed_bytes(), 31'406'250'000);
  EXPECT_EQ(model.ForStage(2).fixed_bytes(), 16'640'625'000);
  EXPECT_EQ(model.ForStage(3).fixed_bytes(), 1'875'000'000);
}

// No sum of its bytes overflows.
TEST(MemoryModelTest, TheLargestModelThatAProfileMayHaveFitsNoDevice) {
  int64_t largest = 1'000'000'000'000'000'000;
  const auto is_refused = [&] {
    const Json profile = ToJson(Profile(largest, largest, largest));
    return CodeOf([&] { ProfileFromJson(profile, "p"); }) == ErrorCode::kInvalidArgument;
  };
  while (is_refused())
    largest /= 10;
  ASSERT_GE(largest, int64_t{1} << 50);
  for (int stage = 0; stage < 4; ++stage) {
    const MemoryModel model(Profile(largest, largest, largest), kFp16, 1, kDeepSpeed);
    EXPECT_EQ(model.ApproxMaxMicroBatch(stage), 0) << stage;
  }
}

TEST(MemoryModelTest, OnACpuABucketTakesNoMoreMemoryThanItHolds) {
  Json config = kBf16;
  config["zero_optimization"] = {{"contiguous_gradients", true},
                                 {"overlap_comm", false},
                                 {"allgather_bucket_size", 1},
                                 {"reduce_bucket_size", 500'000'000}};
  ModelProfile profile = Profile(1'000'000, 1, kGiga);
  EXPECT_EQ(MemoryModel(profile, config, 2, kDeepSpeed).ForStage(2).buffer_bytes, 1'000'000'002);
  profile.device = "cpu";
  EXPECT_EQ(MemoryModel(profile, config, 2, kDeepSpeed).ForStage(2).buffer_bytes, 2'000'002);
  EXPECT_EQ(MemoryModel(profile, config, 1, kDeepSpeed).ForStage(2).buffer_bytes, 2'000'000);
}

TEST(MemoryModelTest, OffloadedStatesLeaveTheDevice) {
  Json config = NoBuckets(kBf16);
  config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}, {"ratio", 0.5}};
  config["zero_optimization"]["offload_param"] = {{"device", "cpu"}};
  const ModelProfile profile = Profile(1'000'000, 1, kGiga);
  const MemoryModel model(profile, config, 2, kDeepSpeed);
  EXPECT_EQ(model.ForStage(0).offloaded_bytes, 0);
  EXPECT_EQ(model.ForStage(1).grad_bytes, 2'000'000) << "they are sharded at the end of a step";
  EXPECT_EQ(model.ForStage(2).optimizer_bytes, 0) << "the ratio is for stage 3";
  EXPECT_EQ(model.ForStage(2).grad_bytes, 0);
  EXPECT_EQ(model.ForStage(2).offloaded_bytes, 6'000'000);
  EXPECT_EQ(model.ForStage(3).optimizer_bytes, 3'000'000);
  EXPECT_EQ(model.ForStage(3).grad_bytes, 1'000'000) << "f32, for the half on the device";
  EXPECT_EQ(model.ForStage(3).param_bytes, 0);
  EXPECT_EQ(model.ForStage(3).offloaded_bytes, 3'000'000 + 1'000'000);
  EXPECT_EQ(MemoryModel(profile, config, 2, kPublished).ForStage(3).offloaded_bytes, 0);
}

// estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs
// (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py; docs/code-docs/source/memory.rst). The
// estimate of stage 3 adds the largest layer, which is 0 here.
TEST(MemoryModelTest, WithOffloadTheStatesAreThoseOfDeepSpeedsOwnEstimates) {
  Json config = NoBuckets(kBf16);
  config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
  const auto state_bytes = [&](int stage, int64_t num_gpus) {
    const MemoryModel model(Profile(7 * kGiga, 1, kGiga), config, num_gpus, kDeepSpeed);
    return model.ForStage(stage).fixed_bytes();
  };
  for (const int64_t num_gpus : {1, 8}) {
    EXPECT_EQ(state_bytes(2, num_gpus), 2 * 7 * kGiga);
    EXPECT_EQ(state_bytes(3, num_gpus), 2 * 7 * kGiga / num_gpus);
  }
  config["zero_optimization"]["offload_param"] = {{"device", "cpu"}};
  EXPECT_EQ(state_bytes(3, 8), 0);
}

// Allocations that DeepSpeed 0.19.8 was seen to make, by tensor.
TEST(MemoryModelTest, DeepSpeedUpdatesACopyOfParametersOfAnyTypeFromStage1On) {
  const auto optimizer_bytes = [](const Json& config, MemoryLaw law, int stage) {
    return MemoryModel(Profile(1000, 1, 1), config, 1, law).ForStage(stage).optimizer_bytes;
  };
  Json own_master = kBf16;
  own_master["bf16"]["bf16_master_weights_and_grads"] = true;
  Json all_16_bits = own_master;
  all_16_bits["bf16"]["bf16_optimizer_states"] = true;
  Json autocast = {{"torch_autocast", {{"enabled", true}, {"dtype", "bfloat16"}}}};
  for (const Json& config : {kFp32, autocast}) {
    EXPECT_EQ(optimizer_bytes(config, kDeepSpeed, 0), 8000);
    EXPECT_EQ(optimizer_bytes(config, kBuiltin, 1), 8000);
    EXPECT_EQ(optimizer_bytes(config, kPublished, 1), 8000);
  }
  EXPECT_EQ(optimizer_bytes(own_master, kBuiltin, 1), 8000);
  EXPECT_EQ(optimizer_bytes(all_16_bits, kBuiltin, 1), 4000);
  EXPECT_EQ(optimizer_bytes(all_16_bits, kPublished, 1), 8000);
  for (const int stage : {1, 2, 3}) {
    EXPECT_EQ(optimizer_bytes(kFp32, kDeepSpeed, stage), 4000 + 8000);
    EXPECT_EQ(optimizer_bytes(autocast, kDeepSpeed, stage), 4000 + 8000);
    EXPECT_EQ(optimizer_bytes(kBf16, kDeepSpeed, stage), 4000 + 8000);
    EXPECT_EQ(optimizer_bytes(all_16_bits, kDeepSpeed, stage), 2000 + 4000);
  }
}

TEST(MemoryModelTest, GradientsHaveTheTypeInWhichTheyAreAccumulated) {
  const auto grad_bytes = [](Json config, const char* type, MemoryLaw law) {
    config["data_types"]["grad_accum_dtype"] = type;
    const MemoryModel model(Profile(1000, 1, 1), config, 2, law);
    std::vector<int64_t> bytes;
    for (const int stage : {1, 2, 3})
      bytes.push_back(model.ForStage(stage).grad_bytes);
    return bytes;
  };
  using Bytes = std::vector<int64_t>;
  EXPECT_EQ(grad_bytes(kBf16, "bf16", kDeepSpeed), (Bytes{2000, 1000, 1000}));
  EXPECT_EQ(grad_bytes(kFp16, "fp32", kDeepSpeed), (Bytes{4000, 2000, 2000}));
  EXPECT_EQ(grad_bytes(kBf16, "float32", kBuiltin), (Bytes{4000, 2000, 2000}));
  EXPECT_EQ(grad_bytes(kBf16, "fp32", kDeepSpeed), (Bytes{2000 + 4000, 2000, 2000}))
      << "stage 1 keeps the gradients of a pass, too";
  Json offload = kBf16;
  offload["zero_optimization"]["offload_optimizer"]["device"] = "cpu";
  EXPECT_EQ(grad_bytes(offload, "fp32", kDeepSpeed), (Bytes{4000, 0, 0}));
}

TEST(MemoryModelTest, SecondaryPartitionsAreSharedByAGroupAlone) {
  Json config = NoBuckets(kBf16);
  config["zero_optimization"]["zero_hpz_partition_size"] = 4;
  const MemoryModel model(Profile(8000, 1, 1), config, 8, kDeepSpeed);
  EXPECT_EQ(model.ForStage(2).param_bytes, 16'000);
  EXPECT_EQ(model.ForStage(3).param_bytes, 16'000 / 8 + 16'000 / 4);
  config["zero_optimization"]["zero_hpz_partition_size"] = 1;
  EXPECT_EQ(MemoryModel(Profile(8000, 1, 1), config, 8, kDeepSpeed).ForStage(3).param_bytes, 2000);
}

TEST(MemoryModelTest, FrozenParametersHaveNeitherGradientsNorOptimizerStates) {
  ModelProfile profile = Profile(1000, 1, 1);
  profile.trainable_num_params = 10;
  const StageMemory memory = MemoryModel(profile, kBf16, 1, kDeepSpeed).ForStage(0);
  EXPECT_EQ(memory.param_bytes, 2000);
  EXPECT_EQ(memory.grad_bytes, 20);
  EXPECT_EQ(memory.optimizer_bytes, 120);
}

TEST(MemoryModelTest, SgdKeepsOneMomentOrNone) {
  Json sgd = kFp32;
  sgd["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0.1}}}};
  EXPECT_EQ(MemoryModel(Profile(1000, 1, 1), sgd, 1, kDeepSpeed).ForStage(0).optimizer_bytes, 0);
  sgd["optimizer"]["params"]["momentum"] = 0.9;
  EXPECT_EQ(MemoryModel(Profile(1000, 1, 1), sgd, 1, kDeepSpeed).ForStage(0).optimizer_bytes, 4000);
  EXPECT_EQ(MemoryModel(Profile(1000, 1, 1), sgd, 1, kPublished).ForStage(0).optimizer_bytes, 8000);
}

TEST(MemoryModelTest, ThePublishedFormulaTakesBf16ForFp32AndGradientsForFp32Always) {
  const StageMemory bf16 = MemoryModel(Profile(1000, 1, 1), kBf16, 2, kPublished).ForStage(0);
  EXPECT_EQ(bf16.param_bytes, 4000);
  EXPECT_EQ(bf16.grad_bytes, 4000);
  EXPECT_EQ(bf16.optimizer_bytes, 8000);
  const StageMemory fp16 = MemoryModel(Profile(1000, 1, 1), kFp16, 2, kPublished).ForStage(2);
  EXPECT_EQ(fp16.param_bytes, 2000);
  EXPECT_EQ(fp16.grad_bytes, 2000);
  EXPECT_EQ(fp16.optimizer_bytes, 6000);
  EXPECT_EQ(fp16.buffer_bytes, 0);
}

TEST(MemoryModelTest, BucketsAreCountedUpToTheParametersTheyCanHold) {
  Json config = kBf16;
  config["zero_optimization"] = {{"reduce_bucket_size", 100}, {"allgather_bucket_size", 3e2}};
  const auto buffer_bytes = [](const Json& config, int64_t world_size, int stage) {
    return MemoryModel(Profile(1000, 1, 1), config, world_size, kBuiltin)
        .ForStage(stage)
        .buffer_bytes;
  };
  EXPECT_EQ(buffer_bytes(config, 2, 0), 2 * 100);
  EXPECT_EQ(buffer_bytes(config, 2, 1), 2 * (100 + 300));
  // Stage 3 overlaps unless told otherwise, and prefetches; the prefetch bucket holds everything.
  EXPECT_EQ(buffer_bytes(config, 2, 3), 2 * (2 * 100 + 1000));
  config["zero_optimization"]["overlap_comm"] = true;
  EXPECT_EQ(buffer_bytes(config, 2, 2), 2 * (2 * 100 + 300));
  EXPECT_EQ(buffer_bytes(kBf16, 2, 1), 2 * (1000 + 1000));
  EXPECT_EQ(buffer_bytes(config, 1, 2), 0);
}

// As DeepSpeed 0.19.8 was seen to allocate them with so many parameters.
TEST(MemoryModelTest, DeepSpeedAllocatesReductionBucketsAsAWhole) {
  Json config = NoBuckets(kBf16);
  config["zero_optimization"]["reduce_bucket_size"] = 7e6;
  config["zero_optimization"]["overlap_comm"] = true;
  const auto buffer_bytes = [&](int64_t world_size) {
    const MemoryModel model(Profile(144, 1, 1), config, world_size, kDeepSpeed);
    std::vector<int64_t> bytes;
    for (const int stage : {0, 1, 2, 3})
      bytes.push_back(model.ForStage(stage).buffer_bytes);
    return bytes;
  };
  using Bytes = std::vector<int64_t>;
  EXPECT_EQ(buffer_bytes(1), (Bytes{0, 28'000'000, 28'000'000, 14'000'000}));
  EXPECT_EQ(buffer_bytes(2), (Bytes{2 * 2 * 144, 28'000'000, 28'000'000, 14'000'000}));
  config["zero_optimization"]["overlap_comm"] = false;
  EXPECT_EQ(buffer_bytes(1), (Bytes{0, 14'000'000, 14'000'000, 14'000'000}));
  config["zero_optimization"]["contiguous_gradients"] = false;
  EXPECT_EQ(buffer_bytes(1), (Bytes{0, 0, 0, 0}));
  EXPECT_EQ(buffer_bytes(2), (Bytes{2 * 144, 2 * 144, 2 * 144, 2 * 144}));
  config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
  EXPECT_EQ(buffer_bytes(1), (Bytes{0, 14'000'000, 14'000'000, 0}))
      << "stages 1 and 2 keep gradients contiguous with offload";
  config["zero_optimization"]["contiguous_gradients"] = true;
  config["zero_optimization"]["reduce_bucket_size"] = 9e18;
  EXPECT_GT(buffer_bytes(1)[1], kGiga * kGiga / 1000) << "no sum overflows";
}

TEST(MemoryModelTest, WhereParametersAreShardedTwoUnitsAreWholeAtATime) {
  ModelProfile profile = Profile(1000, 1, 1);
  profile.two_units_num_params = 300;
  const MemoryModel model(profile, NoBuckets(kBf16), 2, kDeepSpeed);
  EXPECT_EQ(model.ForStage(2).gathered_bytes, 0);
  EXPECT_EQ(model.ForStage(3).gathered_bytes, 600);
  EXPECT_EQ(model.ForStage(3).fixed_bytes(), 1000 + 1000 + 6000 + 600);
  EXPECT_EQ(MemoryModel(profile, NoBuckets(kBf16), 1, kDeepSpeed).ForStage(3).gathered_bytes, 0);
  // With DeepSpeed's own reuse distance, 10⁹ elements, everything stays until the last backward.
  Json kept = NoBuckets(kBf16);
  kept["zero_optimization"].erase("stage3_max_reuse_distance");
  EXPECT_EQ(MemoryModel(profile, kept, 2, kDeepSpeed).ForStage(3).gathered_bytes, 2000);
  kept["zero_optimization"]["stage3_max_live_parameters"] = 400;
  EXPECT_EQ(MemoryModel(profile, kept, 2, kDeepSpeed).ForStage(3).gathered_bytes, 800);
  EXPECT_EQ(MemoryModel(profile, NoBuckets(kFp16), 2, kPublished).ForStage(3).gathered_bytes, 0);
}

TEST(MemoryModelTest, SharesOfAnUnevenSizeAreRoundedUp) {
  const MemoryModel model(Profile(10, 1, 1), NoBuckets(kFp32), 3, kDeepSpeed);
  EXPECT_EQ(model.ForStage(3).param_bytes, 14);
}

TEST(MemoryModelTest, TheLargestMicroBatchIsWhatIsLeftOverTheActivationsOfASample) {
  // 1000 fp32 parameters on one rank: 16000 bytes.
  const auto at = [](int64_t device, MemoryLaw law) {
    return MemoryModel(Profile(1000, 100, device), kFp32, 1, law).ApproxMaxMicroBatch(1);
  };
  EXPECT_EQ(at(16'000 + 5 * 100, kBuiltin), 5);
  EXPECT_EQ(at(16'000 + 5 * 100 - 1, kBuiltin), 4);
  EXPECT_EQ(at(16'000 + 99, kBuiltin), 0);
  EXPECT_EQ(at(15'000, kBuiltin), 0);
  // The published one keeps a sample in reserve, and is never below 1.
  EXPECT_EQ(at(16'000 + 5 * 100, kPublished), 4);
  EXPECT_EQ(at(16'000, kPublished), 1);
  EXPECT_EQ(at(0, kPublished), 1);
}

TEST(MemoryModelTest, HigherStagesLeaveRoomForLargerMicroBatches) {
  const MemoryModel model(Profile(1'000'000, 1000, 20'000'000), NoBuckets(kBf16), 4, kDeepSpeed);
  for (int stage = 1; stage <= 3; ++stage) {
    EXPECT_GT(model.ApproxMaxMicroBatch(stage), model.ApproxMaxMicroBatch(stage - 1));
  }
}

TEST(MemoryModelTest, WithoutActivationsOrDeviceMemoryTheAnswerIsOne) {
  for (const MemoryLaw law : {kBuiltin, kPublished}) {
    EXPECT_EQ(MemoryModel(Profile(10, 0, kGiga), kFp32, 1, law).ApproxMaxMicroBatch(1), 1);
    EXPECT_EQ(MemoryModel(Profile(10, 5, 0), kFp32, 1, law).ApproxMaxMicroBatch(1), 1);
  }
}

}  // namespace
}  // namespace dsat
