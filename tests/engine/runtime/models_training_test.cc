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
