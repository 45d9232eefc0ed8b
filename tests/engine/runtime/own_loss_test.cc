// Tests training on a loss of the caller, which takes logits and gives their gradient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/base/error_code.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

using ::testing::HasSubstr;

// The mean cross entropy, as the engine's own; `logits` become its gradient.
double CrossEntropy(std::span<float> logits, const Batch& batch, int64_t classes) {
  const int64_t num_rows = batch.B * batch.T;
  double loss = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto x = logits.subspan(static_cast<size_t>(row * classes), static_cast<size_t>(classes));
    const auto target = static_cast<size_t>(batch.targets[row]);
    double sum = 0;
    for (const float value : x)
      sum += std::exp(static_cast<double>(value));
    loss += std::log(sum) - static_cast<double>(x[target]);
    for (float& value : x)
      value = static_cast<float>(std::exp(static_cast<double>(value)) / sum);
    x[target] -= 1;
    for (float& value : x)
      value /= static_cast<float>(num_rows);
  }
  return loss / static_cast<double>(num_rows);
}

// Half the mean of the squares of the logits, which become its gradient.
double Squares(std::span<float> logits) {
  double loss = 0;
  for (float& value : logits) {
    loss += static_cast<double>(value) * static_cast<double>(value) / 2;
    value /= static_cast<float>(logits.size());
  }
  return loss / static_cast<double>(logits.size());
}

// One optimizer step by the cross entropy above.
StepResult OwnStep(Engine& engine, int64_t classes) {
  while (true) {
    const Batch& batch = engine.NextBatch();
    std::vector<float> logits = engine.ForwardLogits(batch);
    const double loss = CrossEntropy(logits, batch, classes);
    engine.Backward(logits, loss);
    if (const auto step = engine.Step()) return *step;
  }
}

class OwnLossTest : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Types, OwnLossTest, testing::Values(DType::kF32, DType::kF16),
                         [](const auto& type) {
                           return type.param == DType::kF32 ? "F32" : "F16";
                         });

TEST_P(OwnLossTest, TheBuiltInLossWrittenByTheCallerTrainsTheSame) {
  const Model model = TinyGpt2();
  const bool is_half = GetParam() == DType::kF16;
  for (int stage = 0; stage <= 3; ++stage) {
    DsConfig config = TinyConfig(stage, 2, 2);
    SetPrecision(config, GetParam());
    const int num_steps = NumStepsFor(config);
    const std::vector<RankRun> expected = Train(model, config, 2, num_steps);
    OnEngines(model, config, 2, [&](Engine& engine, ProcessGroup& group) {
      const RankRun& run = expected[static_cast<size_t>(group.rank())];
      for (int step = 0; step < num_steps; ++step) {
        const StepResult result = OwnStep(engine, model.vocab_size);
        const StepResult& its = run.steps[static_cast<size_t>(step)];
        EXPECT_EQ(result.skipped, its.skipped) << "stage " << stage << " step " << step;
        EXPECT_NEAR(result.loss, its.loss, is_half ? 2e-3 : 1e-5);
        const double norms = its.skipped ? 1 : result.grad_norm / its.grad_norm;
        EXPECT_NEAR(norms, 1, is_half ? 1e-2 : 1e-4);
      }
      const auto all = ParamsHere(engine);
      for (size_t u = 0; u < all.size(); ++u) {
        const std::vector<float>&params = all[u], &theirs = run.params[u];
        ASSERT_EQ(params.size(), theirs.size());
        for (size_t i = 0; i < params.size(); ++i)
          ASSERT_NEAR(params[i], theirs[i], 2e-3) << "stage " << stage << " unit " << u;
      }
    });
  }
}

// Along its gradient g a small step of SGD lowers a loss by lr * |g|^2.
TEST(OwnLossTest, TheGradientIsThatOfFiniteDifferences) {
  for (const auto& make_model : {TinyGpt2, TinyLlama, TinyMlp, TinyResnet}) {
    const Model model = make_model();
    DsConfig config = TinyConfig(0, 1, 1);
    config.optimizer.type = "sgd";
    OnEngines(model, config, 1, [&](Engine& engine, ProcessGroup&) {
      engine.set_lr(0.01);
      const Batch& batch = engine.NextBatch();
      std::vector<float> logits = engine.ForwardLogits(batch);
      EXPECT_EQ(std::ssize(logits), batch.B * batch.T * model.vocab_size);
      const double before = Squares(logits);
      engine.Backward(logits, before);
      const StepResult step = engine.Step().value();
      EXPECT_EQ(step.loss, before);
      logits = engine.Logits(batch);
      const double expected = step.lr * step.grad_norm * step.grad_norm;
      EXPECT_NEAR((before - Squares(logits)) / expected, 1, 0.05) << model.description;
    });
  }
}

TEST(OwnLossTest, LogitsEndWithThoseOfAPrediction) {
  const Model model = TinyGpt2();
  const std::vector<int32_t> tokens(2 * kSeqLen, 5);
  OnEngines(model, TinyConfig(3, 2, 1), 2, [&](Engine& engine, ProcessGroup&) {
    const Batch batch = {.B = 2, .T = kSeqLen, .tokens = tokens.data()};
    const std::vector<float> all = engine.Logits(batch), last = engine.Predict(batch);
    ASSERT_EQ(std::ssize(all), 2 * kSeqLen * model.vocab_size);
    ASSERT_EQ(std::ssize(last), 2 * model.vocab_size);
    for (int64_t i = 0; i < model.vocab_size; ++i) {
      const int64_t at = (2 * kSeqLen - 1) * model.vocab_size + i;
      EXPECT_NEAR(all[static_cast<size_t>(at)], last[static_cast<size_t>(model.vocab_size + i)],
                  1e-5);
    }
  });
}

TEST(OwnLossTest, CallsThatDoNotBelongTogetherAreRefused) {
  const Model model = TinyMlp();
  OnEngines(model, TinyConfig(0, 1, 1), 1, [&](Engine& engine, ProcessGroup&) {
    const auto message = [](const std::function<void()>& call) {
      return std::string(ErrorOf(call).what());
    };
    std::vector<float> logits = engine.ForwardLogits(engine.NextBatch());
    EXPECT_THAT(message([&] { engine.Backward(); }), HasSubstr("ForwardLogits computes no loss"));
    EXPECT_THAT(message([&] { engine.Backward(std::span(logits).first(5), 1); }),
                HasSubstr("a gradient of 5 numbers; expected 192 x 61"));
    engine.Backward(logits, 1);
    engine.Step();
    engine.Forward(engine.NextBatch());
    EXPECT_THAT(message([&] { engine.Backward(logits, 1); }),
                HasSubstr("Forward has computed the loss"));
    engine.Backward();
  });
}

TEST(OwnLossTest, PipelinesAreRefused) {
  const Model model = TinyGpt2();
  const std::vector<int32_t> tokens(kSeqLen, 5);
  DsConfig config = TinyConfig(0, 1, 2);
  config.pipeline.num_stages = 2;
  OnEngines(model, config, 2, [&](Engine& engine, ProcessGroup&) {
    const Batch batch = {.B = 1, .T = kSeqLen, .tokens = tokens.data()};
    EXPECT_THAT(ErrorOf([&] { engine.ForwardLogits(batch); }).what(),
                HasSubstr("ForwardLogits: the engine has 2 pipeline stages"));
    EXPECT_EQ(ErrorOf([&] { engine.Logits(batch); }).code(), ErrorCode::kUnimplemented);
  });
}

}  // namespace
}  // namespace dsat::engine
