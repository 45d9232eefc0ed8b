// Tests that the answer is none that a later run has disproved, and the speed of its alternatives.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "searcher/search/verdict.h"
#include "tests/searcher/search/simulated_device.h"
#include "tests/searcher/search/simulated_trials.h"

namespace dsat {
namespace {

TEST(DroppedOutTest, WhatDroppedOutIsNotThePick) {
  // Whichever of them drop out in their first confirmations, and however they end.
  for (const TrialState state : {TrialState::kInfeasible, TrialState::kFailed}) {
    for (const bool drops_submitted : {true, false}) {
      Search search(ConfirmedSpec(2));
      std::map<TrialId, bool> drops;
      RunToEnd(search, [&](const Trial& trial) {
        if (trial.kind == TrialKind::kProfile) return Success(trial, 1);
        const bool is_submitted = trial.kind == TrialKind::kSubmitted;
        if (trial.kind != TrialKind::kConfirm) return Success(trial, is_submitted ? 300.0 : 100.0);
        const bool drop = drops_submitted == (*trial.confirms == search.Submitted());
        if (drop) drops[*trial.confirms] = true;
        return drop ? Failure(state) : Success(trial, 100);
      });
      const Verdict verdict = VerdictOf(search);
      ASSERT_FALSE(drops.empty());
      EXPECT_EQ(verdict.left_out.size(), drops.size());
      ASSERT_TRUE(verdict.pick);
      EXPECT_FALSE(drops.contains(*verdict.pick));
      for (const Alternative& other : verdict.alternatives)
        EXPECT_FALSE(drops.contains(other.trial));
    }
  }
}

TEST(DroppedOutTest, WhenAllFinalistsDropOutOthersAreConfirmed) {
  for (const TrialState state : {TrialState::kInfeasible, TrialState::kFailed}) {
    Search search(ConfirmedSpec(2));
    std::set<TrialId> first_arms;
    RunToEnd(search, [&](const Trial& trial) {
      if (trial.kind == TrialKind::kProfile) return Success(trial, 1);
      const bool is_submitted = trial.kind == TrialKind::kSubmitted;
      if (trial.kind != TrialKind::kConfirm)
        return Success(trial, is_submitted ? 50.0 : 100.0 + static_cast<double>(trial.id));
      if (*trial.confirms == search.Submitted()) return Success(trial, 50);
      const bool is_first = first_arms.size() < kMostFinalists;
      if (is_first) first_arms.insert(*trial.confirms);
      return first_arms.contains(*trial.confirms) ? Failure(state) : Success(trial, 100);
    });
    const Verdict verdict = VerdictOf(search);
    ASSERT_EQ(first_arms.size(), kMostFinalists);
    EXPECT_EQ(verdict.left_out.size(), kMostFinalists);
    ASSERT_TRUE(verdict.pick && verdict.factor);
    EXPECT_FALSE(first_arms.contains(*verdict.pick));
    EXPECT_NE(verdict.pick, search.Submitted());
    EXPECT_GE(verdict.num_rounds, 2);
    EXPECT_NEAR(verdict.factor->value, 2, 0.01);
  }
}

// Runs one trial of an experiment. All but the submitted configuration are twice as fast.
void RunOne(Experiment& experiment, const Trial& trial, bool drops_out) {
  const int64_t attempt = experiment.StartAttempt(trial.id, "/logs");
  const bool is_profile = trial.kind == TrialKind::kProfile;
  const bool is_submitted =
      trial.kind == TrialKind::kSubmitted || trial.confirms == experiment.search().Submitted();
  Outcome end{TrialState::kSucceeded, ""};
  if (drops_out) end = {TrialState::kInfeasible, "simulated"};
  if (is_profile) experiment.RecordMeasured(trial.id, attempt, std::nullopt, SampleProfile());
  if (!is_profile && !drops_out) {
    PointResult point = SamplePoint(is_submitted ? 50 : 100, 1);
    point.point = ConfigPoint(trial);
    point.measurement["peak_bytes"] = {.value = 1e9 / static_cast<double>(trial.id), .samples = 1};
    experiment.RecordMeasured(trial.id, attempt, point, std::nullopt);
  }
  experiment.EndAttempt(trial.id, attempt, end, "");
  experiment.Tell(trial.id, end);
}

TEST(DroppedOutTest, FinalistsThatWereLostWhenTheTimeWasOverAreReplacedWithMoreTime) {
  Store store = Store::InMemory();
  ExperimentSpec spec = ConfirmedSpec(2);
  spec.options.max_time_s = 60;
  Experiment experiment = Experiment::Create(store, spec);
  std::set<TrialId> lost;
  const auto run = [&] {
    while (const std::optional<Trial> trial = experiment.Ask()) {
      const bool is_finalist =
          trial->kind == TrialKind::kConfirm && trial->confirms != experiment.search().Submitted();
      const bool is_new = is_finalist && lost.size() < kMostFinalists;
      if (is_new && lost.insert(*trial->confirms).second && lost.size() == kMostFinalists)
        experiment.EndSearch("--max-time: over");
      RunOne(experiment, *trial, is_finalist && lost.contains(*trial->confirms));
    }
  };
  run();
  ASSERT_EQ(lost.size(), kMostFinalists);
  EXPECT_TRUE(experiment.search().Finished());
  const Verdict before = VerdictOf(experiment.search());
  EXPECT_EQ(before.num_rounds, 0);
  EXPECT_FALSE(before.factor && before.factor->has_interval());
  experiment.RaiseLimits({{}, 600, {}});
  run();
  const Verdict after = VerdictOf(experiment.search());
  EXPECT_EQ(after.num_rounds, 2);
  EXPECT_TRUE(after.factor && after.factor->is_gain());
  const Experiment again = Experiment::Open(store, experiment.id());
  EXPECT_EQ(ToJson(VerdictOf(again.search())), ToJson(after));
}

TEST(DroppedOutTest, WhatNeedsAsMuchMemoryAsAnArmThatRanOutOfItIsNoFinalist) {
  Search search(ConfirmedSpec(2));
  std::vector<int64_t> ran_out;  // Sizes, in order.
  RunToEnd(search, [&](const Trial& trial) {
    if (trial.kind == TrialKind::kProfile) return Success(trial, 1);
    const int64_t size = ConfigPoint(trial).micro_batch_size;
    Ending end = Success(trial, 100.0 + static_cast<double>(size));
    // Close to what the device has.
    end.points[0].measurement["peak_bytes"] = {.value = 125e9 + 1e6 * static_cast<double>(size),
                                               .samples = 3};
    if (trial.kind != TrialKind::kConfirm || size <= 4) return end;
    ran_out.push_back(size);
    return Failure(TrialState::kInfeasible);
  });
  ASSERT_GT(ran_out.size(), kMostFinalists);
  const auto second = ran_out.begin() + kMostFinalists;
  EXPECT_LT(*std::max_element(second, ran_out.end()), *std::min_element(ran_out.begin(), second));
  const Verdict verdict = VerdictOf(search);
  ASSERT_TRUE(verdict.pick);
  EXPECT_LE(ConfigPoint(search.trials().at(*verdict.pick)).micro_batch_size, 4);
}

TEST(DroppedOutTest, WithoutOneThatRunsAgainTheExperimentFails) {
  Store store = Store::InMemory();
  ExperimentSpec spec = ConfirmedSpec(2);
  spec.options.max_trials = 3;
  spec.options.soak_steps = 10;
  Experiment experiment = Experiment::Create(store, spec);
  while (const std::optional<Trial> trial = experiment.Ask())
    RunOne(experiment, *trial, RunsAgain(trial->kind));
  ASSERT_TRUE(experiment.FinishIfDone());
  EXPECT_FALSE(VerdictOf(experiment.search()).pick);
  EXPECT_EQ(experiment.state(), ExperimentState::kFailed);
  EXPECT_EQ(experiment.reason(),
            "no configuration that was measured runs again; trial 1 infeasible: simulated");
}

TEST(DroppedOutTest, TheSafestAlternativeIsAsFastInTheConfirmation) {
  Search search(ConfirmedSpec(6));
  // In the search all seem to be as fast as the submitted configuration, which needs least memory.
  RunToEnd(search, [&](const Trial& trial) {
    if (trial.kind == TrialKind::kProfile) return Success(trial, 1);
    const bool is_submitted = trial.kind == TrialKind::kSubmitted ||
                              (trial.confirms && trial.confirms == search.Submitted());
    Ending end = Success(trial, trial.confirms && !is_submitted ? 200.0 : 100.0);
    end.points[0].measurement["peak_bytes"] = {.value = is_submitted ? 1e6 : 1e9, .samples = 3};
    return end;
  });
  const Verdict verdict = VerdictOf(search);
  ASSERT_TRUE(verdict.factor && verdict.factor->is_gain());
  for (const Alternative& other : verdict.alternatives)
    EXPECT_NE(other.trial, search.Submitted()) << other.name;
}

}  // namespace
}  // namespace dsat
