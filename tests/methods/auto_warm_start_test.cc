// The method auto with an earlier search as a prior, and the drift of a machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "methods/auto.h"
#include "methods/warm_start.h"
#include "tests/methods/small_machine.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The prior that a search on this machine leaves behind.
Json EarlierOn(const Machine& machine, bool same_machine = true) {
  auto [method, run] = AutoSearch(machine);
  EarlierSearch earlier{
      .experiment = 3, .same_machine = same_machine, .space = machine.space, .trials = run.trials};
  return ToJson(earlier);
}

struct Ended {
  size_t launches = 0;
  double first_loss = 0;  // The loss of the first proposal.
  double loss = 0;
  std::string warm_start;
};

// The submitted configuration is small; then the method searches.
Ended SearchFrom(Machine machine, const Json& prior, uint64_t seed) {
  machine.seed = seed;
  machine.options.auto_method.prior = prior;
  AutoMethod method(machine.space, machine.options);
  Assignment submitted = PlaceAssignment(machine.space.stages[0]);
  SetMicroBatch(submitted, 1);
  Trial trial = EndOf(machine, submitted, 1000);
  trial.kind = TrialKind::kSubmitted;
  method.Observe(trial);
  const Searched run = Search(machine, method, 1);
  return {.launches = run.proposals.size(),
          .first_loss = LossOf(machine, run.proposals.at(0).assignment),
          .loss = LossOf(machine, method, run),
          .warm_start = method.Conclude().warm_start};
}

TEST(AutoWarmStartTest, TheSameModelNeedsFewLaunches) {
  const Machine machine = SmallMachine();
  const Json prior = EarlierOn(machine);
  size_t cold_launches = 0, warm_launches = 0;
  for (const uint64_t seed : {11, 12, 13}) {
    const Ended cold = SearchFrom(machine, Json(), seed), warm = SearchFrom(machine, prior, seed);
    // Whether the largest size fits again, which needs 99.2 % of the device, is not certain.
    EXPECT_LT(warm.first_loss, 0.05);
    EXPECT_LT(warm.loss, 0.02);
    cold_launches += cold.launches;
    warm_launches += warm.launches;
    EXPECT_THAT(warm.warm_start, HasSubstr("from experiment 3 (the same model, the same machine)"));
    EXPECT_THAT(warm.warm_start, Not(HasSubstr("dropped")));
    EXPECT_EQ(cold.warm_start, "");
  }
  EXPECT_LT(warm_launches, cold_launches);
}

// It computes at a third of the speed and has other fixed costs, but is said to be the same.
TEST(AutoWarmStartTest, AMachineOfAnotherSpeedIsDetectedAndDoesNoHarm) {
  Machine slower = SmallMachine();
  slower.step_s = [](int stage, double size, double accumulation) {
    return 3 * accumulation * 0.01 * (size + 1) * (1 + 0.04 * (3 - stage)) + 0.02;
  };
  const Json prior = EarlierOn(slower);
  const Machine machine = SmallMachine();
  size_t cold_launches = 0, warm_launches = 0;
  for (const uint64_t seed : {11, 12, 13, 14, 15, 16}) {
    const Ended cold = SearchFrom(machine, Json(), seed), warm = SearchFrom(machine, prior, seed);
    EXPECT_THAT(warm.warm_start, HasSubstr("dropped after"));
    EXPECT_LT(warm.loss, std::max(cold.loss, 0.02) + 1e-9);
    cold_launches += cold.launches;
    warm_launches += warm.launches;
  }
  // The first two launches on average.
  EXPECT_LE(warm_launches, cold_launches + size_t{6} * 2);
}

// Memory that was needed elsewhere is not needed here.
TEST(AutoWarmStartTest, AWrongMemoryIsDetected) {
  Machine machine = SmallMachine();
  EarlierSearch earlier = EarlierSearchFromJson(EarlierOn(machine));
  for (Trial& trial : earlier.trials) {
    for (PointResult& point : trial.points)
      point.measurement["peak_bytes"].value *= 0.4;
  }
  const Ended warm = SearchFrom(machine, ToJson(earlier), 11);
  EXPECT_THAT(warm.warm_start, HasSubstr("dropped after"));
  EXPECT_LT(warm.loss, 0.02);
}

// A model of a quarter of the size; its samples and its updates take a quarter of the time.
TEST(AutoWarmStartTest, AnotherModelOnTheSameMachineHelpsMoreThanNothing) {
  Machine smaller = SmallMachine();
  smaller.space.workload.num_params = smaller.space.workload.trainable_num_params = 25'000'000;
  smaller.step_s = [](int stage, double size, double accumulation) {
    return StepSeconds(stage, size, accumulation) / 4;
  };
  const Machine machine = SmallMachine();
  const Ended warm = SearchFrom(machine, EarlierOn(smaller), 11);
  EXPECT_THAT(warm.warm_start, HasSubstr("another model"));
  EXPECT_THAT(warm.warm_start, Not(HasSubstr("dropped")));
  EXPECT_LT(warm.loss, 0.02);
}

// Its places are fewer and have other numbers; AddressSanitizer sees one that is not there.
TEST(AutoWarmStartTest, AnEarlierSearchMayHaveHadFewerStages) {
  const Ended warm = SearchFrom(SmallMachine(), EarlierOn(SmallMachine({2, 3})), 11);
  EXPECT_THAT(warm.warm_start, HasSubstr("from experiment 3 (the same model, the same machine)"));
  EXPECT_LT(warm.loss, 0.02);
}

TEST(AutoWarmStartTest, TheRecordedFormKeepsWhatCounts) {
  const Json json = EarlierOn(SmallMachine());
  EXPECT_EQ(ToJson(EarlierSearchFromJson(json)), json);
  EXPECT_GE(json["trials"].size(), 4u);
}

// By forecasts, a script needs 6.4 of 10 GB at size 16. The earlier search ran out of memory at 2.
TEST(AutoWarmStartTest, WhatRanOutOfMemoryBeforeCountsWhateverFormulasSay) {
  Machine machine = SmallMachine();
  Trial small = EndOf(machine, {{"/zero_optimization/stage", 0}, {kMicroBatchKey, 1}}, 1);
  Trial large = EndOf(machine, {{"/zero_optimization/stage", 0}, {kMicroBatchKey, 2}}, 2);
  small.points[0].measurement.erase("peak_bytes");
  large.points.clear();
  large.state = TrialState::kInfeasible;
  const auto first_size = [&](const std::string& reason) {
    large.reason = reason;
    machine.options.auto_method.prior = ToJson(EarlierSearch{
        .experiment = 3, .same_machine = true, .space = machine.space, .trials = {small, large}});
    AutoMethod method(machine.space, machine.options);
    return MicroBatchOf(method.Ask().value().assignment);
  };
  EXPECT_GE(first_size("invalid configuration"), 8);
  EXPECT_LE(first_size("out of device memory: CUDA out of memory"), 2);
}

// A search and then rounds of its pick and another configuration, as a confirmation has them.
std::optional<MachineDrift> DriftOf(double per_hour, uint64_t seed) {
  Machine machine = SmallMachine();
  machine.seed = seed;
  machine.launch_s = 120;
  machine.drift_per_hour = per_hour;
  auto [method, run] = AutoSearch(machine);
  for (int round = 0; round < 8; ++round) {
    const auto id = static_cast<TrialId>(run.proposals.size()) + 2 + round;
    Trial trial = EndOf(machine, run.proposals[static_cast<size_t>(round % 2)].assignment, id);
    trial.kind = TrialKind::kConfirm;
    method.Observe(trial);
  }
  return method.Conclude().drift;
}

TEST(AutoDriftTest, TheDriftOfTheMachineIsToldWithItsError) {
  int seen = 0, seen_still = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    if (const std::optional<MachineDrift> drift = DriftOf(0.15, seed)) {
      ++seen;
      EXPECT_GT(drift->change, 0);
      EXPECT_NEAR(drift->change / drift->hours, 0.15, 4 * drift->error / drift->hours);
      EXPECT_GT(drift->hours, 0.2);
    }
    seen_still += DriftOf(0, seed) ? 1 : 0;
  }
  EXPECT_GE(seen, 6);
  EXPECT_LE(seen_still, 2);
}

}  // namespace
}  // namespace dsat
