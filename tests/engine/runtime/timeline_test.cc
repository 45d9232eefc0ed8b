// The predicted time: what each speed costs, what is hidden and what is not.
#include "engine/runtime/timeline.h"

#include <gtest/gtest.h>

#include "engine/runtime/predict.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

constexpr double kNear = 1e-9;

StepTime TimeOf(const DsConfig& config, int world_size, const Speeds& speeds) {
  return Predict(TinyGpt2(), config, kSeqLen, 0, world_size, 1, speeds).step_time;
}

TEST(TimelineTest, ComputingTakesTheFlopsOverTheRateRecomputingIncluded) {
  DsConfig config = TinyConfig(0, 1, 1);
  config.activation.checkpoint_interval = 1;
  const Prediction predicted = Predict(TinyGpt2(), config, kSeqLen, 0, 1, 1, {.flops = 1e6});
  EXPECT_GT(predicted.computed_flops, predicted.step_flops);
  EXPECT_NEAR(predicted.step_time.total_ms(),
              static_cast<double>(predicted.computed_flops) / 1e6 * 1e3, kNear);
  EXPECT_EQ(predicted.step_time.compute_ms, predicted.step_time.total_ms());
}

// Two norms and GELU in each of two blocks, and the last norm.
TEST(TimelineTest, OutputsThatAreKeptSaveTheBytesOfComputingThemAgain) {
  DsConfig config = TinyConfig(0, 1, 1);
  const Speeds speeds = {.device_bytes = 1e6};
  const double again_ms = TimeOf(config, 1, speeds).compute_ms;
  config.activation.keeps_outputs = true;
  const int64_t N = kSeqLen * config.batch.micro_batch_size, C = 24;
  const int64_t norm = 2 * N * C + 2 * N + 2 * C, gelu = 2 * N * 4 * C;
  EXPECT_NEAR(again_ms - TimeOf(config, 1, speeds).compute_ms,
              static_cast<double>(5 * norm + 2 * gelu) * 4 / 1e3, 1e-6);
}

TEST(TimelineTest, WithoutOverlapEveryByteSentIsWaitedFor) {
  for (int stage = 0; stage <= 3; ++stage) {
    const DsConfig config = TinyConfig(stage, 2, 1);
    const Speeds speeds = {.flops = 1e9, .link_bytes = 1e6, .call_seconds = 1e-3};
    const Prediction predicted = Predict(TinyGpt2(), config, kSeqLen, 0, 2, 1, speeds);
    const Traffic& traffic = predicted.step_traffic;
    EXPECT_NEAR(predicted.step_time.communication_ms,
                static_cast<double>(traffic.sent_bytes) / 1e6 * 1e3 +
                    static_cast<double>(traffic.num_collectives),
                1e-6)
        << stage;
    EXPECT_EQ(predicted.step_time.communication_ms, predicted.step_time.link_busy_ms);
  }
}

TEST(TimelineTest, OverlapHidesCommunicationBehindComputing) {
  DsConfig config = TinyConfig(2, 2, 1);
  config.zero.reduce_bucket_size = 4096;
  const Speeds fast_link = {.flops = 1e6, .link_bytes = 1e9};
  const double apart_ms = TimeOf(config, 2, fast_link).communication_ms;
  config.zero.overlap_comm = true;
  const StepTime together = TimeOf(config, 2, fast_link);
  EXPECT_LT(together.communication_ms, apart_ms);
  EXPECT_NEAR(together.link_busy_ms, apart_ms, 1e-6);  // The same bytes, sent all the same.
  // A link that is slower than computing cannot be hidden.
  const Speeds slow_link = {.flops = 1e9, .link_bytes = 1e3};
  const StepTime waits = TimeOf(config, 2, slow_link);
  EXPECT_GT(waits.communication_ms, 0.99 * waits.link_busy_ms - waits.compute_ms);
}

TEST(TimelineTest, OffloadCostsItsCopies) {
  DsConfig config = TinyConfig(2, 2, 1);
  config.zero.offload_optimizer.tier = Tier::kHost;
  const Speeds speeds = {.copy_bytes = 1e6};
  const Prediction predicted = Predict(TinyGpt2(), config, kSeqLen, 0, 2, 1, speeds);
  const TierTraffic& tiers = predicted.tier_traffic;
  EXPECT_GT(predicted.step_time.copy_ms, 0);
  EXPECT_NEAR(predicted.step_time.total_ms(),
              static_cast<double>(tiers.to_host_bytes + tiers.to_device_bytes) / 1e3, 1e-6);
}

TEST(TimelineTest, AnUpdateReadsAndWritesTheOptimizersState) {
  DsConfig config = TinyConfig(0, 1, 1);
  const int64_t elems = PaddedElems(TinyGpt2(), 1);
  // f32 Adam: parameter and two moments both ways, the gradient twice: for the norm, and here.
  const Speeds speeds = {.device_bytes = 1e6};
  EXPECT_NEAR(TimeOf(config, 1, speeds).update_ms, static_cast<double>(elems) * 32 / 1e3, 1e-6);
  // bf16, all of it: the same numbers of 2 bytes.
  config.bf16 = config.bf16_master_weights_and_grads = config.bf16_optimizer_states = true;
  EXPECT_NEAR(TimeOf(config, 1, speeds).update_ms, static_cast<double>(elems) * 16 / 1e3, 1e-6);
}

TEST(TimelineTest, PipelinedReadsAndWritesOfTheDiskAreHiddenBehindTheUpdate) {
  DsConfig config = TinyConfig(1, 1, 1);
  config.zero.offload_optimizer.tier = Tier::kNvme;
  config.zero.offload_optimizer.buffer_count = 20;
  config.zero.sub_group_size = 1024;
  const Speeds speeds = {.host_bytes = 1e6, .read_bytes = 1e6, .write_bytes = 1e6};
  const StepTime apart = TimeOf(config, 1, speeds);
  EXPECT_NEAR(apart.disk_ms, apart.disk_busy_ms, 1e-6);
  config.zero.offload_optimizer.pipeline_read = true;
  config.zero.offload_optimizer.pipeline_write = true;
  const StepTime pipelined = TimeOf(config, 1, speeds);
  EXPECT_NEAR(pipelined.disk_busy_ms, apart.disk_busy_ms, 1e-6);
  EXPECT_LT(pipelined.disk_ms, apart.disk_ms);
  EXPECT_GE(pipelined.total_ms() + 1e-6, apart.disk_busy_ms);
}

TEST(TimelineTest, APipelinesBubbleIsItsStagesLessOneOverItsMicroBatches) {
  DsConfig config = TinyConfig(0, 2, 3);
  config.batch = {.train_batch_size = 12, .micro_batch_size = 4, .accumulation_steps = 3};
  config.pipeline.num_stages = 2;
  const StepTime time = TimeOf(config, 2, {.flops = 1e6});
  EXPECT_NEAR(time.bubble_ms, time.compute_ms / 3, 1e-6);
}

}  // namespace
}  // namespace dsat::engine
