// Tests the confirmation: its order, its intervals and what it leaves out.
#include "searcher/search/confirm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

ConfirmPlan Plan(std::vector<TrialId> arms, int64_t rounds = 9) {
  ConfirmPlan plan;
  plan.base = arms.front();
  plan.arms = std::move(arms);
  plan.looks = LooksUpTo(rounds);
  plan.metric = "throughput";
  return plan;
}

// Runs all rounds; `speed` gives the speed of an arm in a round.
template <typename Speed>
std::vector<TrialId> RunRounds(Confirmation& confirmation, Speed speed) {
  std::vector<TrialId> order;
  while (const auto arm = confirmation.Next()) {
    const int64_t round = confirmation.NumRounds();
    confirmation.Add(*arm, Measured(speed(*arm, round)));
    order.push_back(*arm);
  }
  return order;
}

TEST(ConfirmationTest, TheOrderOfEachRoundIsDrawnFromTheSeed) {
  const auto order_of = [](int64_t seed) {
    ConfirmPlan plan = Plan({1, 5, 7});
    plan.looks = {20};
    plan.seed = seed;
    Confirmation confirmation(plan);
    return RunRounds(confirmation, [](TrialId, int64_t) { return 1.0; });
  };
  const std::vector<TrialId> order = order_of(1);
  ASSERT_EQ(order.size(), 60u);
  std::set<std::vector<TrialId>> orders;
  for (auto round = order.begin(); round != order.end(); round += 3) {
    orders.insert({round, round + 3});
    EXPECT_EQ(std::set<TrialId>(round, round + 3), (std::set<TrialId>{1, 5, 7}));
  }
  EXPECT_EQ(orders.size(), 6u);
  EXPECT_EQ(order_of(1), order);
  EXPECT_NE(order_of(2), order);
}

TEST(ConfirmationTest, LooksAreAfterTwoThreeFourSixAndNineRounds) {
  EXPECT_EQ(LooksUpTo(9), (std::vector<int64_t>{2, 3, 4, 6, 9}));
  EXPECT_EQ(LooksUpTo(1), std::vector<int64_t>{1});
  EXPECT_EQ(LooksUpTo(2), std::vector<int64_t>{2});
  EXPECT_EQ(LooksUpTo(5), (std::vector<int64_t>{2, 3, 4, 5}));
}

// `--confirm 1` had three rounds, and `--confirm 2` began with a quantile of 25.
TEST(ConfirmationTest, AsManyRoundsAsAskedForAreTheMostAndOneLookHasTheWholeError) {
  for (const int64_t rounds : {1, 2}) {
    Confirmation confirmation(Plan({1, 2}, rounds));
    RunRounds(confirmation, [](TrialId arm, int64_t) { return arm == 2 ? 1.001 : 1.0; });
    EXPECT_EQ(confirmation.NumRounds(), rounds);
    const Factor factor = confirmation.Compare(2, 1);
    EXPECT_EQ(factor.has_interval(), rounds == 2);
    // A round of an unknown machine varies by kGuess, which counts half, and t(0.975, 2) = 4.30.
    if (rounds == 1) continue;
    EXPECT_NEAR(std::log(factor.high / factor.value), 4.30265 * LaunchNoise::kGuess / std::sqrt(2),
                1e-3);
  }
}

TEST(ConfirmationTest, DriftOfTheMachineDoesNotWidenTheInterval) {
  Confirmation confirmation(Plan({1, 2}));
  for (int64_t round = 0; round < 4; ++round) {
    for (const TrialId arm : {1, 2})
      confirmation.Add(arm, Measured((arm == 2 ? 150 : 100) * std::pow(0.8, round)));
  }
  const Factor factor = confirmation.Compare(2, 1);
  EXPECT_NEAR(factor.value, 1.5, 1e-9);
  EXPECT_NEAR(factor.low, 1.5, 1e-6);
  EXPECT_NEAR(factor.high, 1.5, 1e-6);
  EXPECT_TRUE(factor.is_gain());
}

// Four rounds of three arms, of which the third one varies little. The variance of the others
// has the degrees of freedom of their rounds and not those of all residuals.
TEST(ConfirmationTest, AKnownTableHasTheIntervalOfItsVariances) {
  ConfirmPlan plan = Plan({1, 2, 3});
  plan.looks = {4};
  Confirmation confirmation(plan);
  const std::vector<double> differences = {0.1, 0.3, 0.1, 0.3};
  for (const double difference : differences) {
    for (const auto& [arm, value] : {std::pair(1, -difference / 2), {2, difference / 2}, {3, 0.0}})
      confirmation.Add(arm, Measured(std::exp(value)));
  }
  // Contrasts d / sqrt(2) with squares of 4 * 0.1^2 / 2 in sum, 3 degrees of freedom, and those of
  // the third arm, which are 0, with 3.
  const Factor factor = confirmation.Compare(2, 1);
  const double pooled = 0.02 / 6, own = (2 * pooled + 0.02) / 5;
  EXPECT_NEAR(std::log(factor.value), 0.2, 1e-9);
  // The two finalists share the error.
  const double half = StudentQuantile(1 - 0.05 / 2 / 2, 6) * std::sqrt(2 * own / 4);
  EXPECT_NEAR(std::log(factor.high / factor.value), half, 1e-9);
  EXPECT_NEAR(std::log(factor.value / factor.low), half, 1e-9);
  EXPECT_NEAR(factor.faster, StudentProbability(0.2 / std::sqrt(2 * own / 4), 6), 1e-9);
}

TEST(ConfirmationTest, KnownNoiseNarrowsTheIntervalUnlessTheRoundsContradictIt) {
  const auto width_with = [](std::optional<double> sd) {
    ConfirmPlan plan = Plan({1, 2}, 2);
    if (sd) plan.noise = {.sd = *sd, .dof = 6, .is_guess = false};
    Confirmation confirmation(plan);
    for (const auto& [arm, speed] : {std::pair(1, 1.0), {2, 1.20}, {2, 1.23}, {1, 1.0}})
      confirmation.Add(arm, Measured(speed));
    const Factor factor = confirmation.Compare(2, 1);
    return std::log(factor.high / factor.low);
  };
  EXPECT_LT(width_with(0.015), 0.6 * width_with(std::nullopt));
  EXPECT_NEAR(width_with(0.0001), width_with(0.0002), 1e-4);  // The rounds vary far more.
  EXPECT_GT(width_with(0.0001), width_with(0.015));
}

TEST(ConfirmationTest, AfterTheFirstLookOnlyTheBestFinalistGoesOn) {
  Confirmation confirmation(Plan({1, 2, 3, 4}));
  const std::vector<TrialId> order = RunRounds(confirmation, [](TrialId arm, int64_t round) {
    const double noise = round % 2 == 0 ? 1.1 : 1 / 1.1;  // All finalists have it.
    return arm == 1 ? 100.0 : (100 + static_cast<double>(arm == 3 ? 9 : arm)) * noise;
  });
  ASSERT_EQ(confirmation.NumRounds(), 9);
  const auto count = [&order](TrialId arm) { return std::ranges::count(order, arm); };
  EXPECT_EQ(count(1), 9);
  EXPECT_EQ(count(3), 9);
  EXPECT_EQ(count(2), 2);
  EXPECT_EQ(count(4), 2);
  EXPECT_EQ(confirmation.Arms().size(), 4u);
  EXPECT_EQ(confirmation.Compare(3, 1).rounds, 9);
  EXPECT_EQ(confirmation.Compare(4, 3).rounds, 2);
}

TEST(ConfirmationTest, OfFinalistsThatAreAsFastTheFirstOneIsTheBest) {
  const auto best_of = [](double second, double third) {
    Confirmation confirmation(Plan({1, 2, 3}, 2));
    RunRounds(confirmation, [&](TrialId arm, int64_t) {
      return arm == 1 ? 100 : arm == 2 ? second : third;
    });
    return confirmation.BestOther();
  };
  EXPECT_EQ(best_of(150, 151), 2);
  EXPECT_EQ(best_of(150, 153), 3);
}

TEST(ConfirmationTest, WhatIsBelievedDecidesBetweenFinalists) {
  const auto best_of = [](double belief) {
    Confirmation confirmation(Plan({1, 2, 3}, 2));
    confirmation.AddBelief(2, 1);
    confirmation.AddBelief(3, belief);
    RunRounds(confirmation, [&](TrialId arm, int64_t) {
      return arm == 1 ? 100 : arm == 2 ? 150 : 153;
    });
    return confirmation.BestOther();
  };
  EXPECT_EQ(best_of(1.02), 3);
  EXPECT_EQ(best_of(0.9), 2);
}

TEST(ConfirmationTest, ANoisyArmDoesNotHideOneThatIsFasterForSure) {
  Confirmation confirmation(Plan({1, 2, 3}));
  RunRounds(confirmation, [](TrialId arm, int64_t round) {
    if (arm < 3) return arm == 1 ? 100.0 : 150.0;
    return round % 2 == 0 ? 235.0 : 98.0;
  });
  ASSERT_GT(confirmation.MeanSpeed(3), confirmation.MeanSpeed(2));
  EXPECT_EQ(confirmation.BestOther(), 2);
  EXPECT_TRUE(confirmation.Compare(2, 1).is_gain());
}

TEST(ConfirmationTest, ADisturbedLaunchDoesNotDecide) {
  Confirmation confirmation(Plan({0, 1}));
  Rng rng(7, 0, "noise");
  for (int64_t round = 0; round < 9; ++round) {
    for (const TrialId arm : {0, 1})
      confirmation.Add(arm, Measured((arm == 1 ? 130 : 100) * std::exp(0.01 * rng.Normal()) /
                                     (arm == 1 && round == 4 ? 3 : 1)));
  }
  const Factor factor = confirmation.Compare(1, 0);
  EXPECT_NEAR(factor.value, 1.3, 0.02);
  EXPECT_GT(factor.low, 1.25);
  EXPECT_LT(factor.high, 1.35);
  EXPECT_NEAR(confirmation.MeanSpeed(1), 130, 2);
}

TEST(ConfirmationTest, RoundsThatCostMoreThanTheyCanSaveDoNotFollow) {
  const auto rounds_with = [](double round_cost) {
    ConfirmPlan plan = Plan({1, 2});
    plan.round_cost = round_cost;
    Confirmation confirmation(plan);
    RunRounds(confirmation, [](TrialId arm, int64_t round) {
      return arm == 1 ? 100.0 : round % 2 == 0 ? 95.0 : 107.0;
    });
    return confirmation.NumRounds();
  };
  EXPECT_EQ(rounds_with(0), 9);
  EXPECT_EQ(rounds_with(1e-5), 9);
  EXPECT_EQ(rounds_with(0.1), 2);
}

TEST(ConfirmationTest, MoreRoundsContinueWithThoseThatHaveBeen) {
  Confirmation confirmation(Plan({1, 2}, 2));
  const auto speed = [](TrialId arm, int64_t round) {
    return arm == 1 ? 100.0 : round % 2 == 0 ? 95.0 : 107.0;
  };
  EXPECT_EQ(RunRounds(confirmation, speed).size(), 4u);
  confirmation.Extend(LooksUpTo(6));
  EXPECT_EQ(RunRounds(confirmation, speed).size(), 8u);
  EXPECT_EQ(confirmation.NumRounds(), 6);
}

TEST(ConfirmationTest, ABaseThatTheSearchMeasuredFarFromTheRoundsHasTwoKindsOfLaunches) {
  for (const double searched : {100.0, 60.0}) {
    Confirmation confirmation(Plan({1, 2}));
    confirmation.AddSearched(Measured(searched));
    RunRounds(confirmation, [](TrialId arm, int64_t round) {
      return (arm == 1 ? 100.0 : 200.0) + static_cast<double>(round);
    });
    EXPECT_EQ(confirmation.HasTwoKinds(), searched == 60);
    EXPECT_EQ(confirmation.NumRounds(), searched == 60 ? 6 : 2);
  }
}

TEST(ConfirmationTest, ASingleArmIsMeasuredAlone) {
  ConfirmPlan plan = Plan({4});
  plan.base.reset();
  plan.looks = {3};
  Confirmation confirmation(plan);
  double speed = 100;
  EXPECT_EQ(RunRounds(confirmation, [&](TrialId, int64_t) { return speed *= 1.1; }),
            (std::vector<TrialId>{4, 4, 4}));
  EXPECT_NEAR(confirmation.MeanSpeed(4), 121, 1e-9);
  EXPECT_NEAR(confirmation.LogSpeed(4).variance, std::pow(std::log(1.1), 2) / 3, 1e-9);
  plan.arms.clear();
  EXPECT_EQ(Confirmation(plan).Next(), std::nullopt);
}

TEST(ConfirmationTest, WithoutABaseTheFirstLookDecides) {
  ConfirmPlan plan = Plan({1, 2});
  plan.base.reset();
  Confirmation confirmation(plan);
  RunRounds(confirmation, [](TrialId arm, int64_t round) {
    return static_cast<double>(arm) * (round % 2 == 0 ? 1 : 2);
  });
  EXPECT_EQ(confirmation.NumRounds(), 2);
  EXPECT_EQ(confirmation.BestOther(), 2);
}

TEST(ConfirmationTest, ARoundThatWasCutCountsWhereBothHaveBeenMeasured) {
  Confirmation confirmation(Plan({1, 2, 3}));
  RunRounds(confirmation, [](TrialId arm, int64_t round) {
    return arm == 1 ? 100.0 : round % 2 == 0 ? 95.0 : 107.0;
  });
  const int64_t rounds = confirmation.NumRounds();
  confirmation.Extend(LooksUpTo(12));
  const std::optional<TrialId> next = confirmation.Next();
  confirmation.Add(*next, Measured(100));
  EXPECT_EQ(confirmation.NumRounds(), rounds);
  EXPECT_FALSE(confirmation.IsBetweenRounds());
  confirmation.Add(*confirmation.Next(), Ended(TrialState::kStopped));  // By its runner.
  EXPECT_EQ(confirmation.NumRounds(), rounds);
  EXPECT_TRUE(confirmation.LeftOut().empty());
}

TEST(ConfirmationTest, AnArmThatDoesNotRunAgainIsLeftOut) {
  Confirmation confirmation(Plan({1, 2, 3}, 2));
  confirmation.Add(1, Measured(10));
  confirmation.Add(2, Ended(TrialState::kInfeasible));
  confirmation.Add(3, Ended(TrialState::kFailed));
  EXPECT_EQ(confirmation.Next(), 3);
  confirmation.Add(3, Measured(20));
  EXPECT_EQ(confirmation.NumRounds(), 1);
  EXPECT_EQ(confirmation.Arms(), (std::vector<TrialId>{1, 3}));
  using LeftOut = std::vector<std::pair<TrialId, std::string>>;
  EXPECT_EQ(confirmation.LeftOut(), (LeftOut{{2, "infeasible: simulated"}}));
  confirmation.Add(3, Ended(TrialState::kFailed));
  EXPECT_EQ(confirmation.Next(), std::nullopt);
  EXPECT_EQ(confirmation.Arms(), std::vector<TrialId>{1});
}

TEST(ConfirmationTest, AnOutOfMemoryThatIsForgivenDropsAnArmTheSecondTime) {
  Confirmation confirmation(Plan({1, 2}));
  confirmation.Add(2, Ended(TrialState::kInfeasible), /*forgives=*/true);
  EXPECT_EQ(confirmation.Arms().size(), 2u);
  confirmation.Add(2, Ended(TrialState::kInfeasible), /*forgives=*/false);
  EXPECT_EQ(confirmation.Arms(), std::vector<TrialId>{1});
}

TEST(ConfirmationTest, TheNextBestGoesOnWhereTheBestDropsOut) {
  Confirmation confirmation(Plan({1, 2, 3}));
  std::vector<TrialId> order;
  while (const auto arm = confirmation.Next()) {
    const double noise = confirmation.NumRounds() % 2 == 0 ? 1.1 : 1 / 1.1;
    const bool drops = *arm == 3 && confirmation.NumRounds() >= 2;
    confirmation.Add(*arm, drops ? Ended(TrialState::kInfeasible)
                                 : Measured(*arm == 1 ? 100 : (100 + 3.0 * *arm) * noise));
    order.push_back(*arm);
  }
  EXPECT_EQ(confirmation.BestOther(), 2);
  EXPECT_EQ(confirmation.NumRounds(), 9);
  EXPECT_GE(confirmation.Compare(2, 1).rounds, 8);
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
