// Tests the order of the grid's proposals, and its end.
#include "methods/grid.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/methods/method_testing.h"

namespace dsat {
namespace {

using StageAndSize = std::pair<int, int64_t>;

StageAndSize Of(const Proposal& proposal) {
  return {StageOf(proposal.assignment), MicroBatchOf(proposal.assignment)};
}

SearchSpace WithoutKnobs(const std::vector<int>& stages, int64_t approx) {
  SearchSpace space = TestSpace(stages, approx);
  for (StageSpace& stage : space.stages)
    stage.knobs.clear();
  return space;
}

TEST(GridTest, SizesComeSmallestFirstOverAllStagesUpToTheFirstThatDoesNotFit) {
  SearchSpace space = WithoutKnobs({3, 1}, 4);
  GridMethod method(space, TestOptions());
  std::vector<StageAndSize> asked;
  int64_t id = 0;
  while (const std::optional<Proposal> p = method.Ask()) {
    asked.push_back(Of(*p));
    const bool fits = asked.back().second <= (asked.back().first == 3 ? 8 : 2);
    method.Tell(p->tag, EndedTrial(id++, fits ? TrialState::kSucceeded : TrialState::kInfeasible,
                                   static_cast<double>(asked.back().second)));
  }
  EXPECT_EQ(asked, (std::vector<StageAndSize>{
                       {3, 1}, {1, 1}, {3, 2}, {1, 2}, {3, 4}, {1, 4}, {3, 8}, {3, 16}}));
}

// The sizes of stage 1 that have these values as their metrics, and whether another one is asked
// for.
bool GoesOnAfter(const std::vector<double>& values, const std::string& metric = "throughput") {
  SearchOptions options = TestOptions();
  options.metric = metric;
  Driven<GridMethod> driver(WithoutKnobs({1}, 2), options);
  for (const double value : values)
    driver.Tell(driver.Ask(), TrialState::kSucceeded, value);
  return driver.method.Ask().has_value();
}

TEST(GridTest, BeyondTheEstimateAStageGoesOnUntilASizeIsClearlyWorse) {
  EXPECT_TRUE(GoesOnAfter({1, 2, 3}));
  EXPECT_FALSE(GoesOnAfter({1, 2, 3, 2.5}));
  EXPECT_FALSE(GoesOnAfter({3, 2.9, 2.5}));
  EXPECT_TRUE(GoesOnAfter({20, 10, 9}, "latency"));
  EXPECT_FALSE(GoesOnAfter({20, 10, 12}, "latency"));
}

TEST(GridTest, BeyondTheEstimateOneLuckySizeDoesNotStopAStageButTwoWorseInARowDo) {
  EXPECT_TRUE(GoesOnAfter({1, 2, 3, 2.9}));
  EXPECT_TRUE(GoesOnAfter({1, 2, 3, 2.9, 4}));
  EXPECT_FALSE(GoesOnAfter({1, 2, 3, 2.9, 2.95}));
  EXPECT_FALSE(GoesOnAfter({1, 2, 3, 3, 3}));
  EXPECT_TRUE(GoesOnAfter({20, 10, 10.5}, "latency"));
  EXPECT_FALSE(GoesOnAfter({20, 10, 10.5, 10.5}, "latency"));
}

TEST(GridTest, ItWaitsForTheTrialThatDecides) {
  GridMethod method(WithoutKnobs({1}, 1), TestOptions());
  const std::optional<Proposal> first = method.Ask();
  ASSERT_TRUE(first);
  EXPECT_FALSE(method.Ask());
  method.Tell(first->tag, EndedTrial(0, TrialState::kSucceeded, 1));
  EXPECT_TRUE(method.Ask());
}

TEST(GridTest, StagesPredictedNotToFitComeLast) {
  SearchSpace space = WithoutKnobs({1, 2}, 1);
  space.stages[0].approx_max_micro_batch = 0;
  Driven<GridMethod> driver(space, TestOptions());
  EXPECT_EQ(Of(driver.Ask()), StageAndSize(2, 1));
  EXPECT_EQ(Of(driver.Ask()), StageAndSize(1, 1));
}

TEST(GridTest, KnobsAreVariedOneAtATimeAtTheBestSizeOfTheBestStageFirst) {
  Driven<GridMethod> driver(TestSpace({1, 2}, 2), TestOptions());
  // Stage 2 is best, and at size 1.
  for (int i = 0; i < 4; ++i) {
    const Proposal p = driver.Ask();
    driver.Tell(p, TrialState::kSucceeded,
                Of(p) == StageAndSize(2, 1) ? 9 : 1.0 / static_cast<double>(Of(p).second));
  }
  std::vector<StageAndSize> bases;
  for (std::optional<Proposal> p = driver.method.Ask(); p; p = driver.method.Ask()) {
    EXPECT_EQ(p->assignment.size(), 3u) << "stage, size and one knob";
    bases.push_back(Of(*p));
  }
  ASSERT_EQ(bases.size(), 10u);  // (3 + 2) values for each of two stages.
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(bases[i], i < 5 ? StageAndSize(2, 1) : StageAndSize(1, 1));
  }
}

TEST(GridTest, AStageWithoutAnyMeasurementGetsNoVariations) {
  Driven<GridMethod> driver(TestSpace({1}, 2), TestOptions());
  driver.Tell(driver.Ask(), TrialState::kInfeasible);
  EXPECT_FALSE(driver.method.Ask());
}

TEST(GridTest, AFailedTrialDoesNotStopTheSizesBelowTheEstimate) {
  for (const bool compat : {false, true}) {
    Driven<GridMethod> driver(WithoutKnobs({1}, 4), TestOptions(compat));
    driver.Tell(driver.Ask(), TrialState::kFailed);
    EXPECT_EQ(driver.method.Ask().has_value(), !compat);
  }
}

}  // namespace
}  // namespace dsat
