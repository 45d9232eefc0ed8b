// The model of examples/own-model, whose forward and backward are written by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/model/model_runner.h"

// The example's, a program of its own.
dsat::engine::Model MakeGatedMemoryModel();

namespace dsat::engine {
namespace {

ModelRunner MakeRunner(Arena::Kind kind, std::unique_ptr<Kernels> kernels) {
  return ModelRunner(MakeGatedMemoryModel(), kind, std::move(kernels), DType::kF32, 0.1);
}

TEST(OwnModelTest, GradientsAreThoseOfFiniteDifferences) {
  ModelRunner runner = MakeRunner(Arena::Kind::kReal, MakeCpuKernels(1));
  const RandomBatch batch(runner.model(), 3, 7);
  runner.Forward(batch.view());
  runner.Backward();
  for (size_t layer = 0; layer < runner.model().layers.size(); ++layer) {
    const auto& specs = runner.model().layers[layer]->params();
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::vector<float> direction = runner.Values(runner.grad(layer, i));
      const std::vector<float> start = runner.Values(runner.param(layer, i));
      double squares = 0;
      for (const float g : direction)
        squares += double{g} * g;
      ASSERT_GT(squares, 0) << specs[i].name;
      const double step = 0.02 / std::sqrt(squares);
      const auto loss_at = [&](double distance) {
        for (size_t e = 0; e < start.size(); ++e) {
          runner.param(layer, i).f32()[e] = static_cast<float>(start[e] + distance * direction[e]);
        }
        return runner.Loss(batch.view());
      };
      const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
      loss_at(0);
      EXPECT_NEAR(slope / squares, 1, 0.01) << specs[i].name;
    }
  }
}

TEST(OwnModelTest, PredictedMemoryIsThatOfTheRun) {
  ModelRunner real = MakeRunner(Arena::Kind::kReal, MakeCpuKernels(1));
  ModelRunner counting = MakeRunner(Arena::Kind::kCounting, MakeCountingKernels(1));
  const RandomBatch batch(real.model(), 3, 7);
  real.Forward(batch.view());
  real.Backward();
  counting.Forward({.B = 3, .T = 7});
  counting.Backward();
  EXPECT_EQ(counting.arena().peak_bytes(), real.arena().peak_bytes());
  EXPECT_GT(real.arena().peak_bytes(), real.arena().live_bytes());
}

}  // namespace
}  // namespace dsat::engine
