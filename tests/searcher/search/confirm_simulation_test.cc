// Simulates confirmations on noisy machines: how often their intervals are right, what they cost,
// and what the picks are worth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "searcher/search/confirm.h"

namespace dsat {
namespace {

constexpr int kRuns = 1000;

// The launches of a machine.
struct Machine {
  std::string name;
  double sd = 0;                // The standard deviation of the logarithm of the speed.
  std::vector<double> factors;  // The speeds; the submitted configuration is the first.
  double known_sd = 1;          // The part of `sd` that the search knows; 0: nothing is known.
  double outliers = 0;          // The share of launches that are slowed down by 10 to 50 %.
  double slow_kind = 0;         // The share of launches of the submitted one at 0.6 of its speed.
  double others_sd = 0;         // Not 0: the noise of the other configurations.
  double most_load = 0;         // Others use up to this share during a launch,
  double power = 0;             // and speed grows with this power of what they leave.
  double follows = 0;           // The share of a launch's load that is that of the launch before.
  bool is_periodic = false;     // Two launches in every two rounds of a fixed order are slow.
};

class Launches {
 public:
  Launches(const Machine& machine, int run, const char* purpose)
      : machine_(machine), rng_(11, static_cast<uint64_t>(run), purpose) {}

  Trial Run(TrialId arm) {
    const double sd = arm > 0 && machine_.others_sd > 0 ? machine_.others_sd : machine_.sd;
    double log_speed = std::log(machine_.factors[static_cast<size_t>(arm)]) + sd * rng_.Normal();
    if (rng_.Uniform() < machine_.outliers) log_speed -= 0.1 + 0.4 * rng_.Uniform();
    if (arm == 0 && rng_.Uniform() < machine_.slow_kind) log_speed += std::log(0.6);
    const size_t at = num_launches_++ % (2 * machine_.factors.size());
    const bool is_slow = at == 0 || at == 2 * machine_.factors.size() - 1;
    if (machine_.is_periodic && is_slow) log_speed -= 0.08;
    if (num_launches_ == 1 || rng_.Uniform() >= machine_.follows)
      load_ = machine_.most_load * rng_.Uniform();
    log_speed += machine_.power * std::log1p(-load_);
    Trial trial;
    trial.kind = TrialKind::kConfirm;
    trial.times.others = load_;
    trial.state = TrialState::kSucceeded;
    trial.points = {{.point = {}, .measurement = {{"throughput", {.value = std::exp(log_speed)}}}}};
    return trial;
  }

 private:
  const Machine& machine_;
  Rng rng_;
  size_t num_launches_ = 0;
  double load_ = 0;
};

// Means over the runs.
struct Result {
  double launches = 0;
  double covered = 0;  // The share of intervals of the best finalist that contain its factor.
  double gains = 0;    // The share in which a finalist is said to be faster for sure.
  double changes = 0;  // The share of picks other than the submitted configuration.
  double speed = 0;    // The true speed of the pick as a part of the best, as a geometric mean.
  double two_kinds = 0;
};

Result Simulate(const Machine& machine) {
  Result result;
  std::vector<TrialId> arms;
  for (size_t i = 0; i < machine.factors.size(); ++i)
    arms.push_back(static_cast<TrialId>(i));
  std::vector<double> truth = machine.factors;
  truth[0] *= std::pow(0.6, machine.slow_kind);
  double speed = 0;
  for (int run = 0; run < kRuns; ++run) {
    ConfirmPlan plan{.arms = arms,
                     .base = 0,
                     .looks = LooksUpTo(9),
                     .round_cost = 3e-4,
                     .seed = run,
                     .metric = "throughput"};
    if (machine.known_sd > 0) {
      Rng rng(13, static_cast<uint64_t>(run), "known");
      double squares = 0;
      for (int i = 0; i < 6; ++i) {
        const double normal = rng.Normal();
        squares += normal * normal / 6;
      }
      plan.noise = {
          .sd = std::sqrt(squares) * machine.sd * machine.known_sd, .dof = 6, .is_guess = false};
    }
    Confirmation confirmation(plan);
    Launches search(machine, run, "search"), rounds(machine, run, "rounds");
    confirmation.AddSearched(search.Run(0));
    // The mean of all launches is believed.
    std::map<TrialId, std::vector<double>> launched;
    const auto believe = [&](TrialId arm, const Trial& trial) {
      launched[arm].push_back(std::log(*SpeedOf(trial, "throughput")));
      if (arm != 0) confirmation.AddBelief(arm, std::exp(CenterOf(launched[arm]).mean));
    };
    for (size_t i = 1; i < arms.size(); ++i)
      believe(arms[i], search.Run(arms[i]));
    while (const std::optional<TrialId> arm = confirmation.Next()) {
      const Trial trial = rounds.Run(*arm);
      confirmation.Add(*arm, trial);
      believe(*arm, trial);
      result.launches += 1.0 / kRuns;
    }
    const TrialId best = *confirmation.BestOther();
    const Factor factor = confirmation.Compare(best, 0);
    const double is = truth[static_cast<size_t>(best)] / truth[0];
    const bool changes = confirmation.Believe(best, 0)->Utility() > 0;
    result.covered += factor.low <= is && is <= factor.high ? 1.0 / kRuns : 0;
    result.gains += factor.is_gain() ? 1.0 / kRuns : 0;
    result.changes += changes ? 1.0 / kRuns : 0;
    result.two_kinds += confirmation.HasTwoKinds() ? 1.0 / kRuns : 0;
    speed += std::log(truth[changes ? static_cast<size_t>(best) : 0]) / kRuns;
  }
  result.speed = std::exp(speed) / *std::ranges::max_element(truth);
  std::printf("%-34s %5.1f launches, covered %.3f, proven %.2f, changed %.2f, speed %.3f\n",
              machine.name.c_str(), result.launches, result.covered, result.gains, result.changes,
              result.speed);
  return result;
}

// Simulates each machine, and expects that its intervals are right.
void ExpectCovered(const std::vector<Machine>& machines) {
  for (const Machine& machine : machines) {
    const Result result = Simulate(machine);
    EXPECT_GE(result.covered, 0.93) << machine.name;
    // An interval that is wrong on the other side is no false gain.
    const bool is_null = *std::ranges::max_element(machine.factors) == 1;
    if (is_null) {
      EXPECT_LE(result.gains, 0.06) << machine.name;
    }
  }
}

TEST(ConfirmSimulationTest, IntervalsAreRightOnMachinesOfAllKinds) {
  ExpectCovered(
      {{.name = "0.8 %, 1.2", .sd = 0.008, .factors = {1, 1.2, 1.18}},
       {.name = "2 %, 1.2", .sd = 0.02, .factors = {1, 1.2, 1.18}},
       {.name = "2 %, 1.05", .sd = 0.02, .factors = {1, 1.05, 1.04}},
       {.name = "2 %, all alike", .sd = 0.02, .factors = {1, 1, 1}},
       {.name = "5 %, 1.2", .sd = 0.05, .factors = {1, 1.2, 1.18}},
       {.name = "10 %, 1.46", .sd = 0.1, .factors = {1, 1.46, 1.4}},
       {.name = "18 %, all alike", .sd = 0.18, .factors = {1, 1, 1}},
       {.name = "18 %, 1.3", .sd = 0.18, .factors = {1, 1.3, 1.25}},
       {.name = "5 %, four arms, 1.1", .sd = 0.05, .factors = {1, 1.1, 1.1, 1.1}},
       {.name = "2 %, nothing known", .sd = 0.02, .factors = {1, 1.05, 1.04}, .known_sd = 0},
       {.name = "5 %, a third is known",
        .sd = 0.05,
        .factors = {1, 1.1, 1.08},
        .known_sd = 1 / 3.0},
       {.name = "2 %, 8 % disturbed", .sd = 0.02, .factors = {1, 1.2, 1.18}, .outliers = 0.08},
       {.name = "2 %, periodic", .sd = 0.02, .factors = {1, 1.1, 1.08}, .is_periodic = true},
       {.name = "6 %, others 2 %", .sd = 0.06, .factors = {1, 1, 1}, .others_sd = 0.02},
       {.name = "2 %, others 6 %", .sd = 0.02, .factors = {1, 1, 1}, .others_sd = 0.06}});
}

TEST(ConfirmSimulationTest, IntervalsAreRightBesideOtherProcesses) {
  ExpectCovered(
      {{.name = "3 %, alike, load", .sd = 0.03, .factors = {1, 1, 1}, .most_load = 0.6, .power = 1},
       {.name = "3 %, 1.15, load",
        .sd = 0.03,
        .factors = {1, 1.15, 1.1},
        .most_load = 0.6,
        .power = 1},
       {.name = "10 %, alike, much load",
        .sd = 0.1,
        .factors = {1, 1, 1},
        .most_load = 0.8,
        .power = 1.3},
       {.name = "10 %, 1.15, much load",
        .sd = 0.1,
        .factors = {1, 1.15, 1.1},
        .most_load = 0.8,
        .power = 1},
       {.name = "3 %, 1.15, load of no effect",
        .sd = 0.03,
        .factors = {1, 1.15, 1.1},
        .most_load = 0.7},
       {.name = "3 %, 1.15, load, nothing known",
        .sd = 0.03,
        .factors = {1, 1.15, 1.1},
        .known_sd = 0,
        .most_load = 0.7,
        .power = 1},
       {.name = "3 %, 1.15, load that stays",
        .sd = 0.03,
        .factors = {1, 1.15, 1.1},
        .most_load = 0.7,
        .power = 0.8,
        .follows = 0.7},
       {.name = "3 %, 1.15, load, disturbed",
        .sd = 0.03,
        .factors = {1, 1.15, 1.1},
        .outliers = 0.08,
        .most_load = 0.6,
        .power = 1}});
}

TEST(ConfirmSimulationTest, WhatOthersLeaveIsNoNoise) {
  const Machine machine = {
      .name = "", .sd = 0.03, .factors = {1, 1.15, 1.1}, .most_load = 0.6, .power = 1};
  const Result result = Simulate(machine);
  EXPECT_GE(result.gains, 0.8);
  EXPECT_GE(result.speed, 0.98);
}

// Two rounds and the search may meet launches of one kind only: in a quarter of all cases if both
// kinds are equally frequent. Nothing that was measured shows this.
TEST(ConfirmSimulationTest, TwoKindsOfLaunchesAreFoundWhereBothWereMet) {
  const Result result =
      Simulate({.name = "1 %, two kinds", .sd = 0.01, .factors = {1, 2, 1.9}, .slow_kind = 0.5});
  EXPECT_GE(result.covered, 0.7);
  EXPECT_GE(result.two_kinds, 0.2);
  EXPECT_GE(result.speed, 0.99);
}

TEST(ConfirmSimulationTest, ThePickIsWorthWhatTheBestIsAndCostsHalf) {
  struct Case {
    Machine machine;
    double least_speed, most_launches;
  };
  // With three rounds to a look and intervals that decide, these were 10.0, 21.7, 14.6, 47.3, 48.0,
  // 26.5 and 51.7 launches with the soak, and speeds of 1.000, 0.998, 0.995, 0.973, 0.947, 0.990
  // and 0.959 of the best.
  for (const Case& one : std::vector<Case>{
           {{.name = "0.8 %, 1.2", .sd = 0.008, .factors = {1, 1.2, 1.18}}, 0.998, 7},
           {{.name = "2 %, 1.05", .sd = 0.02, .factors = {1, 1.05, 1.04}}, 0.995, 13},
           {{.name = "5 %, 1.2", .sd = 0.05, .factors = {1, 1.2, 1.18}}, 0.99, 9},
           {{.name = "5 %, 1.05", .sd = 0.05, .factors = {1, 1.05, 1.04}}, 0.985, 20},
           {{.name = "10 %, 1.1", .sd = 0.1, .factors = {1, 1.1, 1.08}}, 0.97, 20},
           {{.name = "10 %, 1.46", .sd = 0.1, .factors = {1, 1.46, 1.4}}, 0.98, 9},
           {{.name = "18 %, 1.3", .sd = 0.18, .factors = {1, 1.3, 1.25}}, 0.97, 19}}) {
    const Result result = Simulate(one.machine);
    EXPECT_GE(result.speed, one.least_speed) << one.machine.name;
    EXPECT_LE(result.launches, one.most_launches) << one.machine.name;
  }
}

TEST(ConfirmSimulationTest, ASlowerFinalistIsRarelyThePick) {
  const Result result = Simulate({.name = "5 %, 0.97", .sd = 0.05, .factors = {1, 0.97, 0.96}});
  EXPECT_LE(result.changes, 0.04);
  EXPECT_GE(result.speed, 0.998);
}

}  // namespace
}  // namespace dsat
