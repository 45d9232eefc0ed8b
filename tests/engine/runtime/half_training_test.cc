// Training in half precision: the loss falls, overflow skips steps and moves the loss scale.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/base/error_code.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

DsConfig HalfConfig(int stage, int world_size) {
  DsConfig config = TinyConfig(stage, world_size, 1);
  config.fp16.enabled = true;
  config.optimizer.lr = 1e-2;
  return config;
}

TEST(HalfTrainingTest, LossFallsAtEveryStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto runs = Train(TinyGpt2(), HalfConfig(stage, 2), 2, 60);
    EXPECT_NEAR(runs[0].steps.front().loss, std::log(127), 0.2);
    EXPECT_LT(runs[0].steps.back().loss, 0.8 * runs[0].steps.front().loss) << stage;
    EXPECT_LT(runs[0].skipped, 10) << stage;
  }
}

// 2^36 overflows f16 in any backward pass; the scale halves until one fits.
TEST(HalfTrainingTest, OverflowSkipsStepAndScheduleUntilTheScaleFits) {
  DsConfig config = HalfConfig(2, 2);
  config.fp16.initial_scale_power = 36;
  config.scheduler.type = "WarmupLR";
  config.scheduler.warmup_max_lr = 1e-3;
  config.scheduler.warmup_num_steps = 2;
  config.scheduler.warmup_linear = true;
  const auto start = Train(TinyGpt2(), config, 2, 0);
  const auto skipping = Train(TinyGpt2(), config, 2, 3);
  EXPECT_EQ(WholeParams(TinyGpt2(), skipping), WholeParams(TinyGpt2(), start));

  const auto runs = Train(TinyGpt2(), config, 2, 40);
  const std::vector<StepResult>& steps = runs[0].steps;
  EXPECT_EQ(steps[0].loss_scale, std::ldexp(1.0, 36));
  EXPECT_EQ(steps[1].loss_scale, std::ldexp(1.0, 36));  // Hysteresis 2.
  EXPECT_EQ(steps[2].loss_scale, std::ldexp(1.0, 35));
  int64_t first = 0;  // The first update.
  while (first < 30 && steps[static_cast<size_t>(first)].skipped)
    EXPECT_EQ(steps[static_cast<size_t>(first++)].lr, 0);
  EXPECT_GT(first, 10);
  const double rates[] = {0, 0, 0.5e-3, 1e-3, 1e-3};
  for (size_t i = 0; i < std::size(rates); ++i) {
    const StepResult& step = steps[static_cast<size_t>(first) + i];
    EXPECT_FALSE(step.skipped) << i;
    EXPECT_NEAR(step.lr, rates[i], 1e-12) << i;
  }
  EXPECT_EQ(runs[1].skipped, runs[0].skipped);
}

TEST(HalfTrainingTest, ReportedNormsAreOfUnscaledGradients) {
  DsConfig config = TinyConfig(1, 2, 1);
  const double expected = Train(TinyGpt2(), config, 2, 1)[0].steps[0].grad_norm;
  config.fp16 = {.enabled = true, .loss_scale = 4096};
  const StepResult step = Train(TinyGpt2(), config, 2, 1)[0].steps[0];
  EXPECT_NEAR(step.grad_norm / expected, 1, 1e-2);
  EXPECT_EQ(step.loss_scale, 4096);
}

// The factor of the update holds unscaling and clipping: the scale changes nothing but rounding.
TEST(HalfTrainingTest, AnyScaleThatFitsTrainsTheSame) {
  DsConfig config = HalfConfig(0, 1);
  config.optimizer.type = "sgd";
  config.gradient_clipping = 0.1;
  config.fp16.loss_scale = 256;
  const auto small = WholeParams(TinyGpt2(), Train(TinyGpt2(), config, 1, 3));
  config.fp16.loss_scale = 16384;
  const auto large = WholeParams(TinyGpt2(), Train(TinyGpt2(), config, 1, 3));
  for (size_t i = 0; i < small.size(); ++i)
    ASSERT_NEAR(small[i], large[i], 1e-4) << i;
}

// Parameters of 1e30 are infinite in f16: no scale helps.
TEST(HalfTrainingTest, OverflowAtTheSmallestScaleEndsTheRunOnEveryRank) {
  DsConfig config = HalfConfig(0, 2);
  config.optimizer.type = "sgd";
  config.optimizer.lr = 1e30;
  config.fp16.initial_scale_power = 2;
  config.fp16.hysteresis = 1;
  const Model model = TinyGpt2();
  OnEngines(model, config, 2, [&](Engine& engine, ProcessGroup&) {
    engine.TrainBatch();
    EXPECT_TRUE(engine.TrainBatch().skipped);
    EXPECT_TRUE(engine.TrainBatch().skipped);
    EXPECT_THAT(RefusalOf([&] { engine.TrainBatch(); }),
                testing::HasSubstr("/fp16/min_loss_scale is 1"));
  });
}

TEST(HalfTrainingTest, StepsWithoutFiniteGradientsAreSkippedOnEveryRankUnlessBf16DoesNotCheckThem) {
  DsConfig config = TinyConfig(1, 2, 1);
  config.optimizer.type = "sgd";
  config.optimizer.lr = 1e30;
  for (const bool bf16 : {false, true}) {
    config.bf16 = bf16;
    const auto once = Train(TinyGpt2(), config, 2, 1);
    for (const RankRun& run : Train(TinyGpt2(), config, 2, 3)) {
      EXPECT_EQ(Skips(run), ".xx");
      EXPECT_EQ(run.skipped, 2);
      EXPECT_EQ(run.params, once[0].params);
    }
  }
  config.check_grad_overflow = false;
  const auto runs = Train(TinyGpt2(), config, 2, 3);
  EXPECT_EQ(runs[0].skipped, 0);
  EXPECT_TRUE(std::isnan(WholeParams(TinyGpt2(), runs).front()));
}

TEST(HalfTrainingTest, OneCycleMovesTheBetasOfTheUpdate) {
  DsConfig config = TinyConfig(0, 1, 1);
  config.scheduler.type = "OneCycle";
  config.scheduler.one_cycle.min_lr = config.scheduler.one_cycle.max_lr = 1e-2;
  config.scheduler.one_cycle.min_mom = 0.1;
  const auto cycled = WholeParams(TinyGpt2(), Train(TinyGpt2(), config, 1, 3));
  config.scheduler.one_cycle.cycle_momentum = false;
  config.optimizer.beta2 = 0.99;
  EXPECT_NE(WholeParams(TinyGpt2(), Train(TinyGpt2(), config, 1, 3)), cycled);
}

}  // namespace
}  // namespace dsat::engine
