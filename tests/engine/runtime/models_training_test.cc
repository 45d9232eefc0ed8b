// Trainings of the models through the engine: they learn, and what is frozen stays.
#include <gtest/gtest.h>

#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

TEST(ModelsTrainingTest, ResnetLearnsTheClassesOfSyntheticImages) {
  DsConfig config = TinyConfig(2, 2, 1);
  config.optimizer.lr = 0.01;
  const std::vector<RankRun> runs = Train(TinyResnet(), config, 2, 60);
  EXPECT_NEAR(runs[0].steps.front().loss, std::log(5.0), 0.2);
  EXPECT_LT(runs[0].steps.back().loss, 0.5);
}

// The loss of a step is the mean of its micro-batches' means, also of one in which nothing counts.
TEST(ModelsTrainingTest, TargetsThatDoNotCountAreLeftOut) {
  const Model model = TinyGpt2();
  DsConfig config = TinyConfig(0, 1, 3);
  config.batch = {.train_batch_size = 3, .micro_batch_size = 1, .accumulation_steps = 3};
  OnEngines(model, config, 1, [&](Engine& engine, ProcessGroup&) {
    std::vector<int32_t> tokens(kSeqLen), targets(kSeqLen, 5);
    for (int32_t i = 0; i < kSeqLen; ++i)
      tokens[static_cast<size_t>(i)] = i;
    const Batch batch = {.B = 1, .T = kSeqLen, .tokens = tokens.data(), .targets = targets.data()};
    std::vector<double> losses;
    std::optional<StepResult> step;
    // All count, the first one counts, none counts.
    for (const size_t first_ignored : {size_t{kSeqLen}, size_t{1}, size_t{0}}) {
      std::fill(targets.begin() + static_cast<int64_t>(first_ignored), targets.end(),
                kIgnoredTarget);
      losses.push_back(engine.Forward(batch));
      engine.Backward();
      step = engine.Step();
    }
    EXPECT_GT(losses[1], 1);
    EXPECT_EQ(losses[2], 0);
    EXPECT_DOUBLE_EQ(step.value().loss, (losses[0] + losses[1]) / 3);
    EXPECT_FALSE(step->skipped);
    EXPECT_GT(step->grad_norm, 0);
    targets[0] = -1;
    EXPECT_THROW(engine.Forward(batch), Error);
  });
}

TEST(ModelsTrainingTest, ShardedTrainingIsThatOfOneRank) {
  for (const auto& make_model : {TinyLlama, TinyResnet}) {
    const Model model = make_model();
    const std::vector<float> one = WholeParams(model, Train(model, TinyConfig(0, 1, 1), 1, 3));
    const std::vector<float> sharded = WholeParams(model, Train(model, TinyConfig(3, 2, 2), 2, 3));
    ASSERT_EQ(one.size(), sharded.size());
    for (size_t i = 0; i < one.size(); ++i)
      ASSERT_NEAR(one[i], sharded[i], 2e-3) << model.description << " at " << i;
  }
}

}  // namespace
}  // namespace dsat::engine
