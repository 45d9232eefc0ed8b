// The loss scale, step by step, as DeepSpeed 0.19.6's DynamicLossScaler moves it.
#include "engine/runtime/optimizer/loss_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tests/base/error_code.h"

namespace dsat::engine {
namespace {

Fp16Config Dynamic(int64_t power, int64_t window) {
  Fp16Config config;
  config.enabled = true;
  config.initial_scale_power = power;
  config.loss_scale_window = window;
  return config;
}

// The state after a step.
struct After {
  double scale;
  int64_t hysteresis;
};

struct Case {
  const char* fact;
  Fp16Config config;
  const char* steps;  // One character a step: x overflows.
  std::vector<After> after;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  Fp16Config config = Dynamic(4, 3);
  cases.push_back({"it doubles after window + 1 good steps, then after every window",
                   config,
                   ".......",
                   {{16, 2}, {16, 2}, {16, 2}, {32, 2}, {32, 2}, {32, 2}, {64, 2}}});
  cases.push_back({"the first overflow costs hysteresis, the second half the scale",
                   config,
                   "xx.......",
                   {{16, 1}, {8, 1}, {8, 1}, {8, 1}, {8, 1}, {16, 2}, {16, 2}, {16, 2}, {32, 2}}});
  cases.push_back(
      {"hysteresis comes back when the scale doubles",
       config,
       "x....x.xx",
       {{16, 1}, {16, 1}, {16, 1}, {16, 1}, {32, 2}, {32, 1}, {32, 1}, {16, 1}, {8, 1}}});
  config.consecutive_hysteresis = true;
  cases.push_back({"consecutive: it comes back with every good step",
                   config,
                   "x.x.xx",
                   {{16, 1}, {16, 2}, {16, 1}, {16, 2}, {16, 1}, {8, 1}}});
  config = Dynamic(4, 3);
  config.hysteresis = 1;
  cases.push_back({"hysteresis 1 halves at once", config, "x.x", {{8, 1}, {8, 1}, {4, 1}}});
  config.hysteresis = 0;
  cases.push_back({"hysteresis 0 never halves", config, "xxx", {{16, -1}, {16, -2}, {16, -3}}});
  config = Dynamic(3, 3);
  config.hysteresis = 1;
  config.min_loss_scale = 3;
  cases.push_back({"half of 4 is below the smallest: 3", config, "xx", {{4, 1}, {3, 1}}});
  cases.push_back({"a window of 1 doubles from the second good step on",
                   Dynamic(4, 1),
                   "....x..",
                   {{16, 2}, {32, 2}, {64, 2}, {128, 2}, {128, 1}, {128, 1}, {256, 2}}});
  return cases;
}

TEST(LossScalerTest, MovesStepByStepAsDeepSpeeds) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.fact);
    LossScaler scaler(c.config);
    ASSERT_EQ(std::string(c.steps).size(), c.after.size());
    for (size_t i = 0; i < c.after.size(); ++i) {
      scaler.Update(c.steps[i] == 'x');
      EXPECT_EQ(scaler.Scale(), c.after[i].scale) << "step " << i;
      EXPECT_EQ(scaler.state().hysteresis, c.after[i].hysteresis) << "step " << i;
    }
  }
}

TEST(LossScalerTest, OverflowAtTheSmallestScaleIsAnError) {
  LossScaler scaler(Dynamic(2, 1000));
  for (int i = 0; i < 3; ++i)
    scaler.Update(true);
  EXPECT_EQ(scaler.Scale(), 1);
  const Error error = ErrorOf([&] { scaler.Update(true); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), testing::HasSubstr("/fp16/min_loss_scale is 1"));
  EXPECT_THAT(error.what(), testing::HasSubstr("cannot be lowered"));
}

TEST(LossScalerTest, AStaticScaleStays) {
  Fp16Config config = Dynamic(4, 1);
  config.loss_scale = 128;
  LossScaler scaler(config);
  for (const bool overflow : {true, true, true, false, false, false})
    scaler.Update(overflow);
  EXPECT_EQ(scaler.Scale(), 128);
  scaler.Restore({.scale = 7});
  EXPECT_EQ(scaler.Scale(), 128);
}

TEST(LossScalerTest, WithoutFp16TheScaleIsOne) {
  Fp16Config config = Dynamic(4, 1);
  config.enabled = false;
  LossScaler scaler(config);
  for (int i = 0; i < 4; ++i)
    scaler.Update(false);
  EXPECT_EQ(scaler.Scale(), 1);
}

TEST(LossScalerTest, ARestoredScalerGoesOnAsTheSavedOne) {
  const std::string steps = "..x....x.xx...x...";
  LossScaler whole(Dynamic(10, 3));
  LossScaler first(Dynamic(10, 3));
  for (size_t i = 0; i < steps.size(); ++i) {
    whole.Update(steps[i] == 'x');
    first.Update(steps[i] == 'x');
    LossScaler next(Dynamic(10, 3));
    next.Restore(Json(first.state()).get<LossScalerState>());
    first = next;
    EXPECT_EQ(first.state(), whole.state()) << i;
  }
  EXPECT_EQ(whole.state().iteration, static_cast<int64_t>(steps.size()));
}

}  // namespace
}  // namespace dsat::engine
