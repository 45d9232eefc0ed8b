// Tests the confirmation: its order, its intervals and what it leaves out.
#include "searcher/search/confirm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
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
  Confirmation confirmation({1, 5, 7}, 1, 3, 1, "throughput");
  EXPECT_EQ(RunRounds(confirmation, [](TrialId, int64_t) { return 1.0; }),
            (std::vector<TrialId>{1, 5, 7, 7, 5, 1, 1, 5, 7}));
  EXPECT_EQ(confirmation.NumRounds(), 3);
}

TEST(ConfirmationTest, DriftOfTheMachineDoesNotWidenTheInterval) {
  Confirmation confirmation({1, 2}, 1, 4, 1, "throughput");
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
  Confirmation confirmation({1, 2}, 1, 2, 1, "throughput");
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

// Speeds around 100 times the factor of each arm, with normal noise of this relative size.
class Noise {
 public:
  Noise(int run, double sd, std::map<TrialId, double> factors)
      : rng_(7, static_cast<uint64_t>(run), "noise"), sd_(sd), factors_(std::move(factors)) {}
  double operator()(TrialId arm, int64_t) {
    const auto factor = factors_.find(arm);
    return 100 * (factor == factors_.end() ? 1 : factor->second) * std::exp(sd_ * rng_.Normal());
  }

 private:
  Rng rng_;
  double sd_;
  std::map<TrialId, double> factors_;
};

// The results of 2000 simulated confirmations, three rounds a look.
struct Confirmations {
  double gains = 0;    // The share in which the best other arm is said to be faster.
  double misses = 0;   // The share in which the interval of that arm does not contain its factor.
  double factor = 0;   // The geometric mean of that arm's factor.
  int64_t rounds = 0;  // All of their rounds.
};
Confirmations SimulateRounds(const std::vector<TrialId>& arms, int64_t looks, double sd,
                             const std::map<TrialId, double>& factors) {
  constexpr int kRuns = 2000;
  Confirmations result;
  for (int run = 0; run < kRuns; ++run) {
    Confirmation confirmation(arms, arms[0], 3, looks, "throughput");
    Noise noise(run, sd, factors);
    for (const TrialId arm : arms)
      confirmation.AddSearched(arm, Measured(noise(arm, 0)));
    RunRounds(confirmation, noise);
    const TrialId best = *confirmation.BestOther();
    const Factor factor = confirmation.Compare(best, arms[0]);
    const double truth = factors.contains(best) ? factors.at(best) : 1;
    result.gains += factor.is_gain() ? 1.0 / kRuns : 0;
    result.factor += std::log(factor.value) / kRuns;
    result.misses += factor.low > truth || factor.high < truth ? 1.0 / kRuns : 0;
    result.rounds += confirmation.NumRounds();
  }
  result.factor = std::exp(result.factor);
  return result;
}

TEST(ConfirmationTest, EqualArmsAreRarelyCalledFasterAlsoWithExtension) {
  for (const int64_t looks : {1, 3}) {
    for (const double sd : {0.02, 0.3}) {
      for (const std::vector<TrialId>& arms : {std::vector<TrialId>{0, 1}, {0, 1, 2, 3}}) {
        const Confirmations result = SimulateRounds(arms, looks, sd, {});
        SCOPED_TRACE(testing::Message()
                     << looks << " looks, noise " << sd << ", " << arms.size() << " arms");
        EXPECT_LE(result.gains, 0.03);  // The intervals have two sides of 2.5 % in all.
        EXPECT_LE(result.misses, 0.05);
        EXPECT_GE(result.gains, 0.002);
        if (looks == 1) {
          EXPECT_EQ(result.rounds, 3 * 2000);
        } else if (sd == 0.3) {
          EXPECT_GT(result.rounds, 8 * 2000);  // Noise leaves room for much.
        }
      }
    }
  }
}

TEST(ConfirmationTest, ArmsThatVaryDifferentlyAreRarelyCalledFaster) {
  struct Case {
    double base_sd, others_sd, most_misses;
  };
  for (const auto& [base_sd, others_sd, most_misses] :
       {Case{0.06, 0.02, 0.06}, Case{0.02, 0.06, 0.055}, Case{0.1, 0.01, 0.09}}) {
    constexpr int kRuns = 2000;
    double gains = 0, misses = 0;
    for (int run = 0; run < kRuns; ++run) {
      Confirmation confirmation({0, 1, 2, 3}, 0, 3, 3, "throughput");
      Rng rng(5, static_cast<uint64_t>(run), "noise");
      const auto speed = [&](TrialId arm, int64_t) {
        return 100 * std::exp((arm == 0 ? base_sd : others_sd) * rng.Normal());
      };
      for (const TrialId arm : {0, 1, 2, 3})
        confirmation.AddSearched(arm, Measured(speed(arm, 0)));
      RunRounds(confirmation, speed);
      const Factor factor = confirmation.Compare(*confirmation.BestOther(), 0);
      gains += factor.is_gain() ? 1.0 / kRuns : 0;
      misses += factor.low > 1 || factor.high < 1 ? 1.0 / kRuns : 0;
    }
    EXPECT_LE(gains, 0.055) << base_sd;
    EXPECT_LE(misses, most_misses) << base_sd;
  }
}

TEST(ConfirmationTest, ADisturbedLaunchDoesNotDecide) {
  Confirmation confirmation({0, 1}, 0, 9, 1, "throughput");
  RunRounds(confirmation, [noise = Noise(0, 0.01, {{1, 1.3}})](TrialId arm, int64_t round) mutable {
    return noise(arm, round) / (arm == 1 && round == 4 ? 3 : 1);
  });
  const Factor factor = confirmation.Compare(1, 0);
  EXPECT_NEAR(factor.value, 1.3, 0.02);
  EXPECT_GT(factor.low, 1.25);
  EXPECT_LT(factor.high, 1.35);
  EXPECT_NEAR(confirmation.MeanSpeed(1), 130, 2);
}

TEST(ConfirmationTest, AnExtensionFindsAGainThatThreeRoundsCannotShow) {
  const std::vector<TrialId> arms = {0, 1, 2};
  const std::map<TrialId, double> factors = {{1, 1.10}, {2, 0.98}};
  const Confirmations fixed = SimulateRounds(arms, 1, 0.05, factors);
  const Confirmations extended = SimulateRounds(arms, 3, 0.05, factors);
  EXPECT_LT(fixed.gains, 0.5);
  EXPECT_GT(extended.gains, 0.75);
  EXPECT_LE(extended.misses, 0.05);
}

TEST(ConfirmationTest, TheBestOfEqualFinalistsIsAFewPercentLuckyWithinItsInterval) {
  const Confirmations three = SimulateRounds({0, 1, 2, 3}, 3, 0.05, {{1, 1.1}, {2, 1.1}, {3, 1.1}});
  EXPECT_GT(three.factor, 1.1);
  EXPECT_LT(three.factor, 1.135);
  EXPECT_LE(three.misses, 0.05);
  EXPECT_LT(SimulateRounds({0, 1}, 3, 0.05, {{1, 1.1}}).factor, 1.115);
}

TEST(ConfirmationTest, StopsAtTheFirstLookThatDecides) {
  // Clearly faster; clearly no gain; nothing to compare with.
  for (const double factor : {1.5, 1.0, 0.7}) {
    Confirmation confirmation({1, 2}, 1, 3, 3, "throughput");
    RunRounds(confirmation, Noise(1, 0.002, {{2, factor}}));
    EXPECT_EQ(confirmation.NumRounds(), 3) << factor;
  }
  Confirmation without({1, 2}, std::nullopt, 3, 3, "throughput");
  RunRounds(without, Noise(1, 0.3, {}));
  EXPECT_EQ(without.NumRounds(), 3);
}

TEST(ConfirmationTest, AGainWhoseSizeIsUnknownIsMeasuredFurther) {
  Confirmation confirmation({1, 2, 3, 4}, 1, 3, 3, "throughput");
  RunRounds(confirmation, [](TrialId arm, int64_t round) {
    if (arm == 1) return round == 1 ? 33.0 : 100.0;  // Something else slowed one launch down.
    return 290.0 + static_cast<double>(arm);
  });
  EXPECT_GT(confirmation.NumRounds(), 3);
  EXPECT_TRUE(confirmation.Compare(2, 1).is_gain());
}

TEST(ConfirmationTest, ANoisyArmDoesNotHideOneThatIsCertainlyFaster) {
  Confirmation confirmation({1, 2, 3}, 1, 3, 3, "throughput");
  RunRounds(confirmation, [](TrialId arm, int64_t round) {
    if (arm < 3) return arm == 1 ? 100.0 : 150.0;
    return round % 2 == 0 ? 235.0 : 98.0;
  });
  ASSERT_EQ(confirmation.NumRounds(), 9);  // The first looks have decided nothing.
  ASSERT_GT(confirmation.MeanSpeed(3), confirmation.MeanSpeed(2));
  ASSERT_FALSE(confirmation.Compare(3, 1).is_gain());
  EXPECT_TRUE(confirmation.Compare(2, 1).is_gain());
  EXPECT_EQ(confirmation.BestOther(), 2);
}

TEST(ConfirmationTest, LaunchesOfUnknownLengthAreNotShort) {
  std::map<TrialId, Trial> trials = {{1, Measured(1)}, {2, Measured(1)}};
  SearchOptions options;
  options.confirm_rounds = 3;
  options.confirm_looks = 3;
  EXPECT_EQ(NumLooks(trials, {1, 2}, options), 3);
  trials[1].times = {.started_s = 1, .ended_s = 2};
  EXPECT_EQ(NumLooks(trials, {1, 2}, options), 6);
}

TEST(ConfirmationTest, AsManyArmsAreConfirmedAsFitIntoHalfOfTheLimits) {
  std::map<TrialId, Trial> trials;
  for (const TrialId id : {1, 2, 3, 4}) {
    trials[id] = Measured(1);
    trials[id].times = {.started_s = 100, .ended_s = 110};  // Three rounds of one take 30 s.
  }
  const auto arms = [&](std::optional<double> max_time_s, std::optional<double> max_device_hours) {
    ExperimentSpec spec;
    spec.slots_per_trial = 2;
    spec.options.confirm_rounds = 3;
    spec.options.max_time_s = max_time_s;
    spec.options.max_device_hours = max_device_hours;
    return NumArmsInLimits(trials, {1, 2, 3, 4}, spec);
  };
  EXPECT_EQ(arms({}, {}), 4);
  EXPECT_EQ(arms(240, {}), 4);
  EXPECT_EQ(arms(239, {}), 3);
  EXPECT_EQ(arms(10, {}), 2);
  EXPECT_EQ(arms(240, 2 * 180 / 3600.0), 3);
}

TEST(ConfirmationTest, TheFirstLookOfSeveralHasHalfOfTheError) {
  const auto width = [](int64_t looks) {
    Confirmation confirmation({1, 2}, 1, 2, looks, "throughput");
    for (const auto& [arm, speed] : {std::pair(1, 1.0), {2, 1.2}, {2, 1.3}, {1, 1.1}})
      confirmation.Add(arm, Measured(speed));
    const Factor factor = confirmation.Compare(2, 1);
    return std::log(factor.high / factor.value);
  };
  // t(0.9875, 1) / t(0.975, 1).
  EXPECT_NEAR(width(3) / width(1), 25.4517 / 12.7062, 1e-3);
}

TEST(ConfirmationTest, RoundsThatAgreeByChanceAreWidenedByWhatTheSearchMeasured) {
  const auto compare = [](std::optional<double> searched) {
    Confirmation confirmation({1, 2}, 1, 2, 1, "throughput");
    if (searched) {
      confirmation.AddSearched(1, Measured(*searched));
      confirmation.AddSearched(2, Measured(360));
    }
    for (const auto& [arm, speed] : {std::pair(1, 55.0), {2, 363.0}, {2, 375.0}, {1, 56.0}})
      confirmation.Add(arm, Measured(speed));
    return confirmation.Compare(2, 1);
  };
  const Factor rounds = compare(std::nullopt), with = compare(77);
  EXPECT_DOUBLE_EQ(with.value, rounds.value);
  EXPECT_FALSE(rounds.is_vague());
  EXPECT_TRUE(with.is_vague());
  // Differences log(363 / 55), log(375 / 56) and log(360 / 77), and t(0.975, 2).
  const double a = std::log(363 / 55.0), b = std::log(375 / 56.0), c = std::log(360 / 77.0);
  const double m = (a + b + c) / 3;
  const double variance = ((a - m) * (a - m) + (b - m) * (b - m) + (c - m) * (c - m)) / 2;
  EXPECT_NEAR(std::log(with.high / with.value), 4.30265 * std::sqrt(variance / 2), 1e-4);
  // It narrows nothing.
  EXPECT_DOUBLE_EQ(compare(55).low, rounds.low);
}

// Each launch of the submitted configuration runs at one of two speeds, and the others at one.
TEST(ConfirmationTest, LaunchesOfTwoKindsMisleadFewConfirmations) {
  constexpr int kRuns = 2000;
  constexpr double kSlower = 0.6;
  const double truth = 2 / std::sqrt(kSlower);
  const auto misses = [&](bool with_search) {
    double missed = 0;
    for (int run = 0; run < kRuns; ++run) {
      Rng rng(9, static_cast<uint64_t>(run), "launches");
      const auto speed = [&](TrialId arm, int64_t) {
        const double kind = arm > 0 ? 2 : rng.Uniform() < 0.5 ? kSlower : 1;
        return 100 * kind * std::exp(0.01 * rng.Normal());
      };
      Confirmation confirmation({0, 1, 2}, 0, 3, 3, "throughput");
      for (const TrialId arm : {0, 1, 2}) {
        if (with_search) confirmation.AddSearched(arm, Measured(speed(arm, 0)));
      }
      RunRounds(confirmation, speed);
      const Factor factor = confirmation.Compare(*confirmation.BestOther(), 0);
      missed += factor.low > truth || factor.high < truth ? 1.0 / kRuns : 0;
    }
    return missed;
  };
  EXPECT_LE(misses(true), 0.18);
  EXPECT_GE(misses(false), 0.22);
}

TEST(ConfirmationTest, ASingleArmIsMeasuredAlone) {
  Confirmation confirmation({4}, std::nullopt, 3, 1, "throughput");
  double speed = 100;
  EXPECT_EQ(RunRounds(confirmation, [&](TrialId, int64_t) { return speed *= 1.1; }),
            (std::vector<TrialId>{4, 4, 4}));
  EXPECT_NEAR(confirmation.MeanSpeed(4), 121, 1e-9);
  EXPECT_NEAR(confirmation.LogSpeed(4).variance, std::pow(std::log(1.1), 2) / 3, 1e-9);
  EXPECT_EQ(Confirmation({}, std::nullopt, 3, 1, "throughput").Next(), std::nullopt);
}

TEST(ConfirmationTest, ACutExtensionKeepsTheRoundsThatAreComplete) {
  Confirmation confirmation({1, 2}, 1, 2, 3, "throughput");
  Noise noise(1, 0.3, {});
  std::vector<int64_t> goes_on;
  while (confirmation.NumRounds() < 3) {
    confirmation.Add(*confirmation.Next(), Measured(noise(*confirmation.Next(), 0)));
    if (confirmation.GoesOn()) goes_on.push_back(confirmation.NumRounds());
  }
  EXPECT_EQ(goes_on, std::vector<int64_t>{2});
  confirmation.Add(*confirmation.Next(), Measured(100));
  EXPECT_TRUE(confirmation.MayExtend());
  confirmation.DoNotExtend();
  EXPECT_FALSE(confirmation.MayExtend());
  EXPECT_EQ(confirmation.Next(), std::nullopt);
  EXPECT_EQ(confirmation.NumRounds(), 3);

  Confirmation early({1, 2}, 1, 2, 3, "throughput");
  early.DoNotExtend();
  RunRounds(early, noise);
  EXPECT_EQ(early.NumRounds(), 2);
}

TEST(ConfirmationTest, AnArmThatDoesNotRunAgainIsLeftOut) {
  Confirmation confirmation({1, 2, 3}, 1, 2, 1, "throughput");
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
