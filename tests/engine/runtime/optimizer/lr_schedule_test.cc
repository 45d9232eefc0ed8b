// Schedules against the numbers that DeepSpeed 0.19.6 gives, and against their formulas.
#include "engine/runtime/optimizer/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

namespace dsat::engine {
namespace {

OptimizerConfig Optimizer(const std::string& type = "adamw") {
  OptimizerConfig optimizer;
  optimizer.type = type;
  optimizer.lr = 0.5;
  return optimizer;
}

SchedulerConfig Warmup(const std::string& type, int64_t num_steps, bool linear) {
  return {.type = type,
          .warmup_min_lr = 0.1,
          .warmup_max_lr = 1.1,
          .warmup_num_steps = num_steps,
          .warmup_linear = linear};
}

SchedulerConfig OneCycle(const OneCycleConfig& cycle) {
  SchedulerConfig scheduler{.type = "OneCycle"};
  scheduler.one_cycle = cycle;
  scheduler.one_cycle.min_lr = 0.1;
  scheduler.one_cycle.max_lr = 1.1;
  return scheduler;
}

// The rates of the first updates, as the optimizer of deepspeed/runtime/lr_schedules.py has them
// before each; its optimizer's own rate is 0.5.
struct Golden {
  const char* name;
  SchedulerConfig scheduler;
  std::vector<double> rates;
  std::vector<double> momenta = {};  // With OneCycle.
};

std::vector<Golden> WarmupGoldens() {
  std::vector<Golden> goldens;
  SchedulerConfig s = Warmup("WarmupLR", 4, false);
  s.warmup_max_lr = 0.5;
  goldens.push_back({"logarithmic", s, {0.1, 0.1, 0.3, 0.4169925001, 0.5, 0.5, 0.5}});
  s = Warmup("WarmupLR", 4, true);
  goldens.push_back({"linear", s, {0.1, 0.1, 0.35, 0.6, 0.85, 1.1, 1.1}});
  s.last_batch_iteration = 1;
  goldens.push_back({"from the middle", s, {0.5, 0.6, 0.85, 1.1, 1.1}});
  s = Warmup("WarmupDecayLR", 3, false);
  s.total_num_steps = 8;
  goldens.push_back({"decay", s, {0.1, 0.1, 0.7309297536, 1.1, 1.1, 0.9, 0.7, 0.5, 0.3, 0.1, 0.1}});
  s = Warmup("WarmupDecayLR", 3, true);
  s.total_num_steps = 2;
  goldens.push_back(
      {"decay within warm-up", s, {0.1, 0.1, 0.4333333333, 0.7666666667, 0.1, 0.1, 0.1}});
  s = Warmup("WarmupCosineLR", 3, true);
  s.total_num_steps = 9;
  s.warmup_min_ratio = 0.2;
  s.cos_min_ratio = 0.1;
  goldens.push_back({"cosine",
                     s,
                     {0, 0.1, 0.2333333333, 0.3666666667, 0.4698557159, 0.3875, 0.275, 0.1625,
                      0.08014428415, 0.05, 0.05, 0.05}});
  s = Warmup("WarmupCosineLR", 3, false);
  s.total_num_steps = 7;
  goldens.push_back(
      {"logarithmic cosine",
       s,
       {0, 0, 0.3154648768, 0.5, 0.4267840176, 0.250025, 0.07326598237, 5e-05, 5e-05}});
  return goldens;
}

std::vector<Golden> OtherGoldens() {
  std::vector<Golden> goldens;
  SchedulerConfig s{.type = "LRRangeTest"};
  s.range_test = {.min_lr = 0.1, .step_rate = 2, .step_size = 3};
  goldens.push_back(
      {"range test",
       s,
       {0.1, 0.1666666667, 0.2333333333, 0.3, 0.3666666667, 0.4333333333, 0.5, 0.5666666667}});
  s.range_test.staircase = true;
  goldens.push_back({"stairs of a range test", s, {0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 0.5, 0.5}});
  goldens.push_back({"cycle",
                     OneCycle({.decay_lr_rate = 0.5,
                               .first_step_size = 4,
                               .second_step_size = 6,
                               .decay_step_size = 2,
                               .min_mom = 0.5,
                               .decay_mom_rate = 0.1}),
                     {0.1, 0.35, 0.6, 0.85, 1.1, 0.9333333333, 0.7666666667, 0.6, 0.4333333333,
                      0.2666666667, 0.1, 0.08, 0.06666666667, 0.05714285714},
                     {0.5, 0.8, 0.7, 0.6, 0.5, 0.5666666667, 0.6333333333, 0.7, 0.7666666667,
                      0.8333333333, 0.9, 0.945, 0.99, 1.035}});
  goldens.push_back({"stairs of a cycle",
                     OneCycle({.first_step_size = 6,
                               .second_step_size = 6,
                               .first_stair_count = 3,
                               .second_stair_count = 2}),
                     {0.1, 0.1, 0.4333333333, 0.4333333333, 0.7666666667, 0.7666666667, 1.1, 0.6,
                      0.6, 0.6, 0.1, 0.1, 0.1, 0.1, 0.1},
                     {0.8, 0.9, 0.8666666667, 0.8666666667, 0.8333333333, 0.8333333333, 0.8, 0.85,
                      0.85, 0.85, 0.9, 0.9, 0.9, 0.9, 0.9}});
  goldens.push_back({"cycle without a second half",
                     OneCycle({.first_step_size = 4, .second_step_size = 0}),
                     {0.1, 0.35, 0.6, 0.85, 0.1, 0.1},
                     {0.8, 0.875, 0.85, 0.825, 0.9, 0.9}});
  s = OneCycle({.first_step_size = 4, .second_step_size = 4});
  s.last_batch_iteration = 2;
  goldens.push_back(
      {"cycle from the middle", s, {0.5, 1.1, 0.85, 0.6, 0.35}, {0.9, 0.8, 0.825, 0.85, 0.875}});
  return goldens;
}

void ExpectGoldens(const std::vector<Golden>& goldens) {
  for (const Golden& golden : goldens) {
    SCOPED_TRACE(golden.name);
    for (size_t i = 0; i < golden.rates.size(); ++i) {
      const OptimizerConfig settings =
          ScheduledSettings(Optimizer(), golden.scheduler, static_cast<int64_t>(i));
      EXPECT_NEAR(settings.lr, golden.rates[i], 1e-9) << "update " << i;
      const double momentum = golden.momenta.empty() ? 0.9 : golden.momenta[i];
      EXPECT_NEAR(settings.beta1, momentum, 1e-9) << "update " << i;
    }
  }
}

TEST(LrScheduleTest, WarmupsAreDeepSpeeds) {
  ExpectGoldens(WarmupGoldens());
}

TEST(LrScheduleTest, CyclesAndRangeTestsAreDeepSpeeds) {
  ExpectGoldens(OtherGoldens());
}

TEST(LrScheduleTest, ConstantWithoutASchedule) {
  EXPECT_EQ(LearningRate(Optimizer(), {}, 0), 0.5);
  EXPECT_EQ(LearningRate(Optimizer(), {}, 10'000), 0.5);
}

TEST(LrScheduleTest, AWarmupOfOneStepIsTwoLong) {
  EXPECT_NEAR(LearningRate({}, Warmup("WarmupLR", 1, true), 2), 0.6, 1e-12);
}

TEST(LrScheduleTest, LongSchedulesFollowTheirFormulas) {
  SchedulerConfig log = Warmup("WarmupLR", 1000, false);
  SchedulerConfig decay = Warmup("WarmupDecayLR", 1000, true);
  SchedulerConfig cosine = Warmup("WarmupCosineLR", 1000, true);
  decay.total_num_steps = cosine.total_num_steps = 5000;
  for (const int64_t update : {2, 500, 1000, 1001, 2345, 4999, 5001, 70000}) {
    const auto i = static_cast<double>(update - 1);
    EXPECT_NEAR(LearningRate({}, log, update),
                0.1 + std::min(1.0, std::log(i + 1) / std::log(1000.0)), 1e-9);
    const double ramp = i < 1000 ? i / 1000 : std::max(0.0, (5000 - i) / 4000);
    EXPECT_NEAR(LearningRate({}, decay, update), 0.1 + ramp, 1e-9);
    const double progress = std::min(1.0, (i - 999) / 4000);
    const double wave = 1e-4 + (1 - 1e-4) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    EXPECT_NEAR(LearningRate(Optimizer(), cosine, update), 0.5 * (i < 1000 ? i / 1000 : wave),
                1e-9);
  }
}

TEST(LrScheduleTest, OneCycleSetsTheSecondBetaToo) {
  const SchedulerConfig scheduler = OneCycle({.first_step_size = 4, .second_step_size = 4});
  EXPECT_EQ(ScheduledSettings(Optimizer("lion"), scheduler, 0).beta2, 0.99);
  EXPECT_EQ(ScheduledSettings(Optimizer("lamb"), scheduler, 9).beta2, 0.99);
  SchedulerConfig rates_only = scheduler;
  rates_only.one_cycle.cycle_momentum = false;
  EXPECT_EQ(ScheduledSettings(Optimizer(), rates_only, 3).beta1, 0.9);
  EXPECT_EQ(ScheduledSettings(Optimizer(), rates_only, 3).beta2, 0.999);
}

TEST(LrScheduleTest, AnOptimizerWithoutBetasKeepsItsMomentum) {
  OptimizerConfig sgd = Optimizer("sgd");
  sgd.momentum = 0.7;
  const SchedulerConfig scheduler = OneCycle({.first_step_size = 4, .second_step_size = 4});
  const OptimizerConfig settings = ScheduledSettings(sgd, scheduler, 3);
  EXPECT_EQ(settings.momentum, 0.7);
  EXPECT_NEAR(settings.lr, 0.85, 1e-9);
}

}  // namespace
}  // namespace dsat::engine
