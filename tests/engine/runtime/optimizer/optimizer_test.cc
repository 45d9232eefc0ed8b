// Tests which update a configuration asks for, and what is reported of the steps.
#include "engine/runtime/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/worker/metrics.h"
#include "proto/trial.h"

namespace dsat::engine {
namespace {

TEST(ClipFactorTest, OnlyLargeNormsAreScaled) {
  EXPECT_EQ(ClipFactor(0.5, 1.0), 1.0);
  EXPECT_NEAR(ClipFactor(4.0, 1.0), 0.25, 1e-6);
  EXPECT_EQ(ClipFactor(1e9, 0), 1.0);
}

// One element, by hand.
struct Element {
  float param = 2.0F;
  float grad = 0.5F;
  float m = 0;
  float v = 0;
  OptimizerView View(int num_moments) {
    OptimizerView view;
    view.param = view.master = {&param, 1, DType::kF32};
    view.grad = {&grad, 1, DType::kF32};
    if (num_moments > 0) view.moments.push_back({&m, 1, DType::kF32});
    if (num_moments > 1) view.moments.push_back({&v, 1, DType::kF32});
    return view;
  }
  float After(OptimizerConfig config, int num_steps, float grad_scale = 1) {
    const auto kernels = MakeCpuKernels(1);
    config.lr = 0.1;
    for (int step = 1; step <= num_steps; ++step) {
      const StepScale scale{.grad_scale = grad_scale};
      OptimizerStep(*kernels, config, View(NumMoments(config)), step, &scale);
    }
    return param;
  }
};

OptimizerConfig Config(const std::string& type, double weight_decay) {
  OptimizerConfig config;
  config.type = type;
  config.weight_decay = weight_decay;
  return config;
}

TEST(OptimizerTest, AdamWDecaysBesideTheGradient) {
  // The first bias-corrected step has length lr, whatever the gradient.
  EXPECT_NEAR(Element().After(Config("adamw", 0.5), 1), 2 * (1 - 0.1 * 0.5) - 0.1, 1e-5);
}

TEST(OptimizerTest, AdamDecaysThroughTheGradientUnlessInAdamWMode) {
  OptimizerConfig config = Config("adam", 0.5);
  EXPECT_NEAR(Element().After(config, 1), 2 * (1 - 0.1 * 0.5) - 0.1, 1e-5);
  config.adam_w_mode = false;
  EXPECT_NEAR(Element().After(config, 1), 2 - 0.1, 1e-5);
}

TEST(OptimizerTest, AdamWithoutBiasCorrectionTakesTheRawMoments) {
  OptimizerConfig config = Config("adam", 0);
  config.bias_correction = false;
  const double step = 0.1 * (0.1 * 0.5) / std::sqrt(0.001 * 0.25);
  EXPECT_NEAR(Element().After(config, 1), 2 - step, 1e-5);
}

TEST(OptimizerTest, SgdWithMomentumAndNesterov) {
  OptimizerConfig config = Config("sgd", 0);
  EXPECT_EQ(NumMoments(config), 0);
  EXPECT_NEAR(Element().After(config, 2), 2 - 2 * 0.1 * 0.5, 1e-6);
  config.momentum = 0.9;
  EXPECT_EQ(NumMoments(config), 1);
  EXPECT_NEAR(Element().After(config, 2), 2 - 0.1 * (0.5 + 0.95), 1e-6);
  config.nesterov = true;
  EXPECT_NEAR(Element().After(config, 1), 2 - 0.1 * (0.5 + 0.9 * 0.5), 1e-6);
}

TEST(OptimizerTest, AdagradDividesByTheRootOfAllSquares) {
  OptimizerConfig config = Config("adagrad", 0);
  EXPECT_EQ(NumMoments(config), 1);
  EXPECT_NEAR(Element().After(config, 2), 2 - 0.1 - 0.1 / std::sqrt(2), 1e-6);
  config.lr_decay = 0.5;
  EXPECT_NEAR(Element().After(config, 2), 2 - 0.1 - 0.1 / 1.5 / std::sqrt(2), 1e-6);
}

TEST(OptimizerTest, LionTakesTheSignOfTheMomentum) {
  const OptimizerConfig config = Config("lion", 0.5);
  EXPECT_EQ(NumMoments(config), 1);
  EXPECT_NEAR(Element().After(config, 1), 2 * (1 - 0.1 * 0.5) - 0.1, 1e-6);
}

TEST(OptimizerTest, TheGradientScaleComesFirst) {
  EXPECT_NEAR(Element().After(Config("sgd", 0), 1, 0.25F), 2 - 0.1 * 0.5 * 0.25, 1e-6);
}

TEST(MetricsTest, MedianAndHalfTheInterquartileRange) {
  const Metric odd = Summarize({5, 1, 4, 2, 3});
  EXPECT_EQ(odd.value, 3);
  EXPECT_EQ(odd.spread, 1);
  EXPECT_EQ(odd.samples, 5);
  const Metric even = Summarize({4, 1, 2, 3});
  EXPECT_EQ(even.value, 2.5);
  EXPECT_EQ(even.spread, 0.75);
  EXPECT_EQ(Summarize({7}).value, 7);
  EXPECT_EQ(Summarize({7}).spread, 0);
}

TEST(MetricsTest, AMeasurementHasEveryMetricInItsUnit) {
  StepResult step;
  step.latency_ms = 500;
  step.forward_ms = 100;
  step.backward_ms = 300;
  step.step_ms = 50;
  step.forward_flops = 2'000'000;
  step.loss = 1.5;
  const Measurement measurement =
      MeasurementOf(std::vector<StepResult>{step, step}, {.train_batch_size = 16}, 4096);
  EXPECT_EQ(measurement.at("FLOPS_per_gpu").value, 3 * 2e6 / 0.5);
  EXPECT_EQ(measurement.at("throughput").value, 32);
  EXPECT_EQ(measurement.at("latency").value, 500);
  EXPECT_EQ(measurement.at("forward").value, 100);
  EXPECT_EQ(measurement.at("backward").value, 300);
  EXPECT_EQ(measurement.at("step").value, 50);
  EXPECT_EQ(measurement.at("peak_bytes").value, 4096);
  EXPECT_EQ(measurement.at("loss").value, 1.5);
  EXPECT_EQ(measurement.at("latency").samples, 2);
  EXPECT_FALSE(measurement.contains("pipeline_idle"));
  step.idle_ms = 125;
  const Measurement pipelined =
      MeasurementOf(std::vector<StepResult>{step, step},
                    {.train_batch_size = 16, .tokens_per_sample = 128, .peak_flops = 24e6}, 4096);
  EXPECT_EQ(pipelined.at("pipeline_idle").value, 0.25);
  EXPECT_FALSE(measurement.contains("tokens_per_second"));
  EXPECT_EQ(pipelined.at("tokens_per_second").value, 32 * 128);
  EXPECT_FALSE(measurement.contains("MFU"));
  EXPECT_EQ(pipelined.at("MFU").value, 12e6 / 24e6);
}

}  // namespace
}  // namespace dsat::engine
