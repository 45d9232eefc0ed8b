// Tests what a lineage records, and how it is drawn.
#include "methods/lineage.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/methods/method_testing.h"

namespace dsat {
namespace {

constexpr Step kAnyStep = {.low = 1, .high = 8, .micro_batch = 4};

TEST(LineageTest, TrialsChainInTheOrderProposedAndOnlyEndedOnesCountAsCompleted) {
  LineageTable table(TestSpace({1}, 8), TestOptions());
  Lineage& lineage = table.Draw();
  EXPECT_TRUE(lineage.Idle());
  EXPECT_EQ(lineage.NumCompleted(), 0);
  AddTrial(table, lineage, kAnyStep, 0, TrialState::kSucceeded, 1);
  AddTrial(table, lineage, {.low = 5, .high = 8, .micro_batch = 6}, 1, TrialState::kInfeasible);
  EXPECT_EQ(lineage.NumCompleted(), 2);
  const Proposal third = table.Propose(lineage, {.low = 5, .high = 5, .micro_batch = 5}, 1);
  EXPECT_FALSE(lineage.Idle());
  EXPECT_EQ(lineage.NumCompleted(), 2);
  EXPECT_EQ(third.tag, lineage.number);
  ASSERT_EQ(lineage.trials.size(), 3u);
  EXPECT_EQ(lineage.trials[0].step.micro_batch, 4);
  EXPECT_EQ(lineage.trials[1].step.micro_batch, 6);
  EXPECT_EQ(lineage.trials[2].step.micro_batch, 5);
  EXPECT_EQ(lineage.Rung(), 1);
}

TEST(LineageTest, ProposalsOfALineageDifferInTheirMicroBatchOnly) {
  LineageTable table(TestSpace({2}, 8), TestOptions());
  Lineage& lineage = table.Draw();
  Proposal first = table.Propose(lineage, kAnyStep);
  table.Tell(first.tag, EndedTrial(0, TrialState::kSucceeded, 1));
  Proposal second = table.Propose(lineage, {.low = 5, .high = 8, .micro_batch = 6});
  EXPECT_EQ(MicroBatchOf(first.assignment), 4);
  EXPECT_EQ(MicroBatchOf(second.assignment), 6);
  first.assignment.erase("/train_micro_batch_size_per_gpu");
  second.assignment.erase("/train_micro_batch_size_per_gpu");
  EXPECT_EQ(first.assignment, second.assignment);
}

TEST(LineageTest, ATrialThatWasTooLargeIsInTheHistoryFromItsEndOn) {
  LineageTable table(TestSpace({1}, 8), TestOptions());
  Lineage& lineage = table.Draw();
  AddTrial(table, lineage, kAnyStep, 0, TrialState::kSucceeded, 1);
  const Proposal second = table.Propose(lineage, kAnyStep);
  EXPECT_FALSE(lineage.AnyTooLarge());
  table.Tell(second.tag, EndedTrial(7, TrialState::kInfeasible));
  AddTrial(table, lineage, kAnyStep, 0, TrialState::kSucceeded, 1);
  EXPECT_TRUE(lineage.AnyTooLarge());
}

TEST(LineageTest, OnlyInfeasibleIsEvidenceUnlessPublishedBehaviorIsAskedFor) {
  const std::map<TrialState, SizeEvidence> by_default = {
      {TrialState::kSucceeded, SizeEvidence::kFits},
      {TrialState::kInfeasible, SizeEvidence::kTooLarge},
      {TrialState::kFailed, SizeEvidence::kUnknown},
      {TrialState::kStopped, SizeEvidence::kUnknown}};
  for (const bool compat : {false, true}) {
    LineageTable table(TestSpace({1}, 8), TestOptions(compat));
    for (const auto& [state, evidence] : by_default) {
      Lineage& lineage = table.Draw();
      AddTrial(table, lineage, kAnyStep, 0, state, 1);
      const bool no_evidence = evidence == SizeEvidence::kUnknown;
      EXPECT_EQ(lineage.trials[0].evidence,
                compat && no_evidence ? SizeEvidence::kTooLarge : evidence);
    }
  }
}

TEST(LineageTest, DrawsCoverEveryStageAndEveryKnobValueEvenly) {
  LineageTable table(TestSpace({0, 1, 3}, 8), TestOptions());
  std::map<int, int> stages;
  std::map<Json, int> buckets;
  constexpr int kDraws = 3000;
  for (int i = 0; i < kDraws; ++i) {
    const Lineage& lineage = table.Draw();
    ++stages[lineage.stage];
    EXPECT_EQ(StageOf(lineage.config), lineage.stage);
    ++buckets[lineage.config.at("/zero_optimization/reduce_bucket_size")];
  }
  // A fair draw of one in three lies within 6 standard deviations of 1000.
  ASSERT_EQ(stages.size(), 3u);
  for (const auto& [stage, count] : stages)
    EXPECT_NEAR(count, 1000, 155) << stage;
  ASSERT_EQ(buckets.size(), 3u);
  for (const auto& [value, count] : buckets)
    EXPECT_NEAR(count, 1000, 155) << value;
}

TEST(LineageTest, AStagePredictedNotToFitIsDrawnLessOftenButDrawn) {
  SearchSpace space = TestSpace({1, 2}, 8);
  space.stages[0].approx_max_micro_batch = 0;
  LineageTable table(space, TestOptions());
  int unlikely = 0;
  for (int i = 0; i < 2000; ++i)
    unlikely += table.Draw().stage == 1 ? 1 : 0;
  EXPECT_NEAR(unlikely, 400, 110);
}

TEST(LineageTest, AKnobMoreInTheSpaceShiftsNoOtherDraw) {
  const SearchSpace space = TestSpace({1, 2}, 8);
  SearchSpace larger = space;
  for (StageSpace& stage : larger.stages) {
    stage.knobs.insert(stage.knobs.begin(), {"/zero_optimization/reduce_scatter", {true, false}});
  }
  LineageTable table(space, TestOptions());
  LineageTable other(larger, TestOptions());
  for (int i = 0; i < 50; ++i) {
    const Assignment config = table.Draw().config;
    Assignment with_more = other.Draw().config;
    EXPECT_EQ(with_more.erase("/zero_optimization/reduce_scatter"), 1u);
    EXPECT_EQ(config, with_more);
  }
}

}  // namespace
}  // namespace dsat
