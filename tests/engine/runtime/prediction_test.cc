// Predicted = counted, to the byte. movement_test has every stage, number of ranks and precision.
#include <gtest/gtest.h>

#include "tests/engine/runtime/expect_predicted.h"

namespace dsat::engine {
namespace {

// As an arena counts.
int64_t Rounded(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

TEST(PredictionTest, OtherModelsAndOptimizersArePredictedToo) {
  DsConfig config = TinyConfig(3, 2, 1);
  config.optimizer.type = "sgd";
  ExpectPredicted(TinyMlp(), config, 2);
  ExpectPredicted(TinyLlama(), config, 2);
  ExpectPredicted(TinyResnet(), config, 2);
  config.optimizer.momentum = 0.9;
  ExpectPredicted(TinyMlp(), config, 2);
  config.bf16 = true;
  ExpectPredicted(TinyLlama(), config, 2);
  ExpectPredicted(TinyResnet(), config, 2);
  for (const char* type : {"lamb", "adagrad", "lion"}) {
    config.optimizer.type = type;
    for (const int stage : {0, 3}) {
      config.zero.stage = stage;
      ExpectPredicted(TinyMlp(), config, 2);
    }
  }
}

TEST(PredictionTest, HalfPrecisionCostsWhatBf16Costs) {
  const Model model = TinyGpt2();
  DsConfig config = TinyConfig(2, 2, 1);
  config.fp16 = {.enabled = true, .loss_scale = 256};
  ExpectPredicted(model, config, 2);
  const int64_t f16_bytes = Predicted(model, config, 2).peak_bytes;
  config.fp16 = {};
  config.bf16 = true;
  EXPECT_EQ(Predicted(model, config, 2).peak_bytes, f16_bytes);
}

// Between steps: f32 Adam keeps 4 bytes of parameter and 8 of moments, bf16 2 + 4 (master) + 8. The
// batch, the buckets and the numbers of a step are the rest: the loss of its micro-batch and the
// factor of its updates, and a sum of squares for each unit and slice, exchanged if sharded.
TEST(PredictionTest, StateBytesFollowTheFormulasOfZero) {
  const Model model = TinyGpt2();
  for (const bool bf16 : {false, true}) {
    for (const int P : {1, 2, 4}) {
      const int64_t param = bf16 ? 2 : 4;
      const int64_t optimizer = bf16 ? 12 : 8;
      for (int stage = 0; stage <= 3; ++stage) {
        DsConfig config = TinyConfig(stage, P, 1);
        config.bf16 = bf16;
        const int64_t param_ranks = stage >= 3 ? P : 1;
        const int64_t optimizer_ranks = stage >= 1 ? P : 1;
        int64_t state = 0;
        for (const auto& layer : model.layers) {
          const int64_t psi = LayoutOf(*layer, P).num_elems;
          state += Rounded(param * psi / param_ranks) + optimizer * psi / optimizer_ranks;
        }
        const Plan plan = PlanFor(model, config, P);
        int64_t buckets = 0;
        for (const int64_t row : plan.bucket_row_elems)
          buckets += row * P * param;
        const int64_t batch = 2 * Rounded(config.batch.micro_batch_size * kSeqLen * 4);
        const int64_t squares = P * std::ssize(model.layers) * 8;
        const int64_t numbers = Rounded(3 * 8) + (optimizer_ranks > 1 ? squares : Rounded(squares));
        EXPECT_EQ(Predicted(model, config, P).state_bytes, state + buckets + batch + numbers)
            << bf16 << " " << P << " " << stage;
      }
    }
  }
}

// docs/dev/engine.md, "Memory": 8 and 4 bytes of optimizer state where the parameter serves, 10 and
// 6 beside it.
TEST(PredictionTest, Bf16StateCostsWhatItsDocumentationSays) {
  const Model model = TinyGpt2();
  constexpr int kP = 2;
  const int64_t psi = PaddedElems(model, kP);
  for (const bool bf16_moments : {false, true}) {
    for (const int stage : {1, 2, 3}) {
      DsConfig config = TinyConfig(stage, kP, 1);
      config.bf16 = true;
      const auto predict = [&] { return Predicted(model, config, kP); };
      const Prediction f32 = predict();
      config.bf16_master_weights_and_grads = true;
      config.bf16_optimizer_states = bf16_moments;
      const int64_t bytes = bf16_moments ? 4 : 8;
      EXPECT_NEAR(f32.state_bytes - predict().state_bytes, (12 - bytes) * psi / kP, 64 * 5)
          << stage;
      ExpectPredicted(model, config, kP);
      config.zero.offload_optimizer.tier = Tier::kHost;
      EXPECT_NEAR(predict().host_state_bytes, (2 + bytes) * psi / kP, 64 * 5);
      ExpectPredicted(model, config, kP);
      config.zero.offload_optimizer = {.tier = Tier::kNvme, .nvme_path = testing::TempDir()};
      EXPECT_NEAR(predict().disk_traffic.read_bytes, (2 + bytes) * psi / kP, 4096 * 5);
      ExpectPredicted(model, config, kP);
    }
  }
}

// docs/dev/engine.md, "Traffic": bytes a rank sends per step, in f32, for one unit that is fetched,
// reduced and gathered whole.
TEST(PredictionTest, TrafficFollowsTheFormulasOfZero) {
  const Model model = TinyMlp();
  const int P = 4;
  const int64_t psi = PaddedElems(model, P);
  const int64_t last = LayoutOf(*model.layers.back(), P).num_elems;
  const int64_t first = LayoutOf(*model.layers.front(), P).num_elems;
  for (const int64_t g : {1, 3}) {
    const int64_t elems[4] = {2 * psi, 2 * psi, (g + 1) * psi,
                              3 * g * psi - g * last - (g - 1) * first};
    for (int stage = 0; stage <= 3; ++stage) {
      const Prediction predicted = Predicted(model, TinyConfig(stage, P, g), P);
      EXPECT_EQ(predicted.step_traffic.sent_bytes, 4 * elems[stage] * (P - 1) / P)
          << g << " " << stage;
    }
  }
}

TEST(PredictionTest, MoreSamplesCostTheirActivations) {
  const Model model = TinyGpt2();
  DsConfig config = TinyConfig(2, 2, 1);
  config.batch = {.train_batch_size = 2, .micro_batch_size = 1, .accumulation_steps = 1};
  const Prediction one = Predicted(model, config, 2);
  config.batch = {.train_batch_size = 34, .micro_batch_size = 17, .accumulation_steps = 1};
  const Prediction many = Predicted(model, config, 2);
  EXPECT_EQ(many.forward_flops, 17 * one.forward_flops);
  EXPECT_EQ(one.step_flops, 3 * one.forward_flops);
  EXPECT_GT(one.activation_bytes_per_sample, 0);
  EXPECT_EQ(one.activation_bytes_per_sample, many.activation_bytes_per_sample);
  EXPECT_GE(many.peak_bytes - one.peak_bytes, 15 * one.activation_bytes_per_sample);
}

TEST(PredictionTest, ALargeModelIsPredictedInMillisecondsWithoutMemory) {
  const Model model = MakeModel({{"type", "gpt2"}, {"preset", "1558M"}}, "/model");
  DsConfig config = TinyConfig(3, 4, 1);
  config.bf16 = true;
  const Prediction predicted = Predict(model, config, 1024, 0, 4, 1);
  EXPECT_GT(predicted.state_bytes, int64_t{14} * 1'557'000'000 / 4);
}

}  // namespace
}  // namespace dsat::engine
