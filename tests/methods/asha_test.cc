// Tests which trial asha proposes next, and its rungs over a whole search.
#include "methods/asha.h"

#include <gtest/gtest.h>

#include <vector>

#include "methods/lineage.h"
#include "tests/methods/method_testing.h"

namespace dsat {
namespace {

TEST(AshaTest, EveryTargetInTheRangeIsTriedWithinTheLogOfTheRange) {
  SearchOptions options;
  options.asha.min_binary_search_trials = 10000;
  ExpectEveryTargetIsTried<AshaMethod>(options, 37, BisectionTrials(37));
}

TEST(AshaTest, ALineageGoesOnUntilItsMinimumOfTrialsThenAnotherIsServed) {
  for (int64_t min_trials = 1; min_trials <= 6; ++min_trials) {
    SearchOptions options;
    options.asha.min_binary_search_trials = min_trials;
    Driven<AshaMethod> driver(TestSpace({1, 2, 3}, 100000), options);
    for (int64_t i = 0; i < min_trials; ++i) {
      const Proposal proposal = driver.Ask();
      EXPECT_EQ(proposal.tag, 0);
      driver.Tell(proposal, TrialState::kInfeasible);
    }
    EXPECT_EQ(driver.Ask().tag, 1);
  }
}

TEST(AshaTest, EarlyStoppingRaisesTheFirstRung) {
  SearchOptions options;
  options.asha.asha_early_stopping = 2;
  Driven<AshaMethod> driver(TestSpace({1}, 1000000), options);
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(driver.Step(0).tag, 0);
  EXPECT_EQ(driver.Step(0).tag, 1);
}

TEST(AshaTest, AFinishedLineageIsNotContinued) {
  Driven<AshaMethod> driver(TestSpace({1}, 1), TestOptions(true));
  EXPECT_EQ(driver.Step(100).tag, 0);
  EXPECT_EQ(driver.Step(100).tag, 1);
}

TEST(AshaTest, ByDefaultARangeWhoseTopFitsGrowsWithinItsRung) {
  Driven<AshaMethod> driver(TestSpace({1}, 1), TestOptions());
  std::vector<int64_t> sizes;
  for (int i = 0; i < 3; ++i) {
    const Proposal proposal = driver.Step(100);
    EXPECT_EQ(proposal.tag, 0);
    sizes.push_back(MicroBatchOf(proposal.assignment));
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 2, 4}));
  EXPECT_EQ(driver.Step(100).tag, 1);
}

TEST(AshaTest, TheBestOfTwoLineagesIsPromotedAsSoonAsBothAreThrough) {
  Driven<AshaMethod> driver(TestSpace({1}, 100000), TestOptions());
  for (const double value : {2.0, 1.0}) {
    for (int i = 0; i < 3; ++i)
      driver.Tell(driver.Ask(), TrialState::kSucceeded, value);
  }
  const Proposal promoted = driver.Ask();
  EXPECT_EQ(promoted.tag, 0);
  EXPECT_EQ(driver.method.table().lineages()[0].Rung(), 1);
  EXPECT_EQ(driver.method.table().lineages()[0].trials.size(), 4u);
}

TEST(AshaTest, AFreeSlotTakesAPromotionBeforeAContinuation) {
  Driven<AshaMethod> driver(TestSpace({1}, 100000), TestOptions());
  std::vector<Proposal> first = {driver.Ask(), driver.Ask(), driver.Ask()};
  for (int round = 0; round < 2; ++round) {
    for (Proposal& proposal : first)
      driver.Tell(proposal, TrialState::kSucceeded, 1);
    for (Proposal& proposal : first)
      proposal = driver.Ask();
  }
  // Two lineages end their third trial, the third one its second: both kinds are possible.
  driver.Tell(first[0], TrialState::kSucceeded, 5);
  driver.Tell(first[1], TrialState::kSucceeded, 4);
  const Proposal promoted = driver.Ask();
  EXPECT_EQ(promoted.tag, first[0].tag);
  EXPECT_EQ(driver.method.table().lineages()[0].Rung(), 1);
}

TEST(AshaTest, WithEverWorseResultsWhoeverIsNotPromotedIsWorseThanWhoeverIs) {
  SearchOptions options;
  options.asha.max_rungs = 8;
  options.asha.min_binary_search_trials = 1;
  for (const bool compat : {false, true}) {
    options.compat_determined = compat;
    Driven<AshaMethod> driver(TestSpace({1, 2, 3}, kLargestMicroBatch), options);
    for (int i = 0; i < 500; ++i)
      driver.Tell(driver.Ask(), TrialState::kSucceeded, 500 - i);

    const LineageTable& table = driver.method.table();
    int64_t highest = 0;
    for (const Lineage& stayed : table.lineages()) {
      highest = std::max(highest, stayed.Rung());
      // An exhausted lineage is not promoted, however good it is.
      if (!NextBisectionStep(table, stayed)) continue;
      for (const Lineage& above : table.lineages()) {
        if (above.Rung() != stayed.Rung() + 1) continue;
        EXPECT_LT(*table.BestMetric(stayed), *table.BestMetric(above));
      }
    }
    EXPECT_GE(highest, 4);
  }
}

TEST(AshaTest, ExhaustedLineagesDoNotKeepOthersDownByDefault) {
  std::vector<int64_t> above_rung_0;
  for (const bool compat : {true, false}) {
    SearchOptions options = TestOptions(compat);
    options.asha.min_binary_search_trials = 2;
    // Stage 1, a quarter of the lineages, is exhausted after two trials, and best.
    SearchSpace space = TestSpace({0, 1, 2, 3}, 1000);
    space.stages[1].approx_max_micro_batch = 2;
    Driven<AshaMethod> driver(space, options);
    for (int i = 0; i < 200; ++i) {
      const Proposal p = driver.Ask();
      const bool stage1 = StageOf(p.assignment) == 1;
      const bool fits = !stage1 || MicroBatchOf(p.assignment) < 2;
      driver.Tell(p, fits ? TrialState::kSucceeded : TrialState::kInfeasible, stage1 ? 100 : 1);
    }
    int64_t count = 0;
    for (const Lineage& lineage : driver.method.table().lineages())
      count += lineage.Rung() > 0 ? 1 : 0;
    above_rung_0.push_back(count);
  }
  EXPECT_LE(above_rung_0[0], 1);
  EXPECT_GE(above_rung_0[1], 5);
}

TEST(AshaTest, AFailedTrialEndsItsLineageOnlyByDefault) {
  for (const bool compat : {false, true}) {
    Driven<AshaMethod> driver(TestSpace({1}, 1000), TestOptions(compat));
    driver.Tell(driver.Ask(), TrialState::kFailed);
    const Proposal next = driver.Ask();
    EXPECT_EQ(next.tag, compat ? 0 : 1);
    EXPECT_EQ(MicroBatchOf(next.assignment), compat ? 250 : 500);
  }
}

}  // namespace
}  // namespace dsat
