// Tests the confirmation: its order, its analysis of variance and what it leaves out.
#include "searcher/confirm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace dsat {
namespace {

Trial Measured(double throughput) {
  Trial trial;
  trial.kind = TrialKind::kConfirm;
  trial.state = TrialState::kSucceeded;
  trial.points = {{.point = {}, .measurement = {{"throughput", {.value = throughput}}}}};
  return trial;
}

Trial Ended(TrialState state) {
  Trial trial;
  trial.state = state;
  trial.reason = "simulated";
  return trial;
}

// Runs all rounds; `speed` gives the speed of an arm in a round.
template <typename Speed>
std::vector<TrialId> RunRounds(Confirmation& confirmation, Speed speed) {
  std::vector<TrialId> order;
  while (const auto arm = confirmation.Next()) {
    confirmation.Add(*arm, Measured(speed(*arm, confirmation.NumRounds())));
    order.push_back(*arm);
  }
  return order;
}

TEST(ConfirmationTest, RoundsGoUpAndDownTheArms) {
  Confirmation confirmation({1, 5, 7}, 3, "throughput");
  EXPECT_EQ(RunRounds(confirmation, [](TrialId, int64_t) { return 1.0; }),
            (std::vector<TrialId>{1, 5, 7, 7, 5, 1, 1, 5, 7}));
  EXPECT_EQ(confirmation.NumRounds(), 3);
}

TEST(ConfirmationTest, DriftOfTheMachineDoesNotWidenTheInterval) {
  Confirmation confirmation({1, 2}, 4, "throughput");
  RunRounds(confirmation, [](TrialId arm, int64_t round) {
    return (arm == 2 ? 150.0 : 100.0) * std::pow(0.8, static_cast<double>(round));
  });
  const Factor factor = confirmation.Compare(2, 1);
  EXPECT_NEAR(factor.value, 1.5, 1e-9);
  EXPECT_NEAR(factor.low, 1.5, 1e-6);
  EXPECT_NEAR(factor.high, 1.5, 1e-6);
  EXPECT_TRUE(factor.is_gain());
}

TEST(ConfirmationTest, TheIntervalOfAKnownTableIsTheOneOfItsAnalysisOfVariance) {
  // Logarithms 0, 0.1; 0.2, 0.2; means 0.05 and 0.2. The residuals are 0.025 each; with one degree
  // of freedom their variance is 4 * 0.025^2, and t(0.975, 1) = 12.7062.
  Confirmation confirmation({1, 2}, 2, "throughput");
  RunRounds(confirmation, [](TrialId arm, int64_t round) {
    return std::exp(arm == 2 ? 0.2 : 0.1 * static_cast<double>(round));
  });
  const Factor factor = confirmation.Compare(2, 1);
  const double half = 12.7062 * std::sqrt(2 * 4 * 0.025 * 0.025 / 2);
  EXPECT_NEAR(std::log(factor.value), 0.15, 1e-9);
  EXPECT_NEAR(std::log(factor.high), 0.15 + half, 1e-4);
  EXPECT_NEAR(std::log(factor.low), 0.15 - half, 1e-4);
  EXPECT_FALSE(factor.is_gain());
}

// The share of simulated confirmations of equal arms in which some arm is said to be faster.
TEST(ConfirmationTest, EqualArmsAreRarelyCalledFaster) {
  int false_alarms = 0;
  constexpr int kRuns = 2000;
  for (int run = 0; run < kRuns; ++run) {
    Rng rng(7, static_cast<uint64_t>(run), "noise");
    Confirmation confirmation({0, 1, 2, 3}, 3, "throughput");
    RunRounds(confirmation, [&](TrialId, int64_t) {
      double sum = 0;  // Nearly normal.
      for (int i = 0; i < 12; ++i)
        sum += static_cast<double>(rng.Below(1'000'000)) / 1e6;
      return 100 * std::exp(0.02 * (sum - 6));
    });
    TrialId best = 1;
    for (TrialId arm = 2; arm <= 3; ++arm)
      best = confirmation.MeanSpeed(arm) > confirmation.MeanSpeed(best) ? arm : best;
    false_alarms += confirmation.Compare(best, 0).is_gain() ? 1 : 0;
  }
  EXPECT_LE(false_alarms, kRuns * 3 / 100);  // The intervals have two sides of 2.5 % in all.
  EXPECT_GE(false_alarms, kRuns / 200);
}

TEST(ConfirmationTest, AnArmThatDoesNotRunAgainIsLeftOut) {
  Confirmation confirmation({1, 2, 3}, 2, "throughput");
  confirmation.Add(1, Measured(10));
  confirmation.Add(2, Ended(TrialState::kInfeasible));
  confirmation.Add(3, Ended(TrialState::kFailed));
  EXPECT_EQ(confirmation.Next(), 3);
  confirmation.Add(3, Measured(20));
  EXPECT_EQ(confirmation.NumRounds(), 1);
  EXPECT_EQ(confirmation.Arms(), (std::vector<TrialId>{1, 3}));
  EXPECT_EQ(confirmation.WhyLeftOut(2), "infeasible: simulated");
  confirmation.Add(3, Ended(TrialState::kFailed));
  EXPECT_EQ(confirmation.Next(), std::nullopt);
  EXPECT_EQ(confirmation.Arms(), std::vector<TrialId>{1});
}

TEST(ConfirmationTest, ASmallerLatencyIsFaster) {
  Trial trial = Measured(1);
  trial.points[0].measurement = {
      {"latency", {.value = 50}}, {"FLOPS_per_gpu", {.value = 9}}, {"throughput", {.value = 3}}};
  EXPECT_DOUBLE_EQ(*SpeedOf(trial, "latency"), 0.02);
  EXPECT_DOUBLE_EQ(*SpeedOf(trial, "FLOPS_per_gpu"), 3);
  EXPECT_EQ(SpeedOf(trial, "forward"), std::nullopt);
}

}  // namespace
}  // namespace dsat
