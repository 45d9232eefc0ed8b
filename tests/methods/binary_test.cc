// Tests the result of bisection, its number of trials, and when its range ends or grows.
#include "methods/binary.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/methods/method_testing.h"

namespace dsat {
namespace {

TEST(BinaryTest, EveryTargetInTheRangeIsTriedWithinTheLogOfTheRange) {
  for (const bool compat : {false, true})
    ExpectEveryTargetIsTried<BinaryMethod>(TestOptions(compat), 37, BisectionTrials(37));
}

TEST(BinaryTest, ALineageHasOneTrialAtATimeAndOthersStartBesideIt) {
  Driven<BinaryMethod> driver(TestSpace({1, 2, 3}, 64), TestOptions());
  const Proposal first = driver.Ask();
  const Proposal second = driver.Ask();
  EXPECT_NE(first.tag, second.tag);
  driver.Tell(second, TrialState::kSucceeded, 1);
  driver.Tell(first, TrialState::kInfeasible);
  // Lineages continue in the order in which their trials ended.
  const Proposal third = driver.Ask();
  EXPECT_EQ(third.tag, second.tag);
  EXPECT_EQ(MicroBatchOf(third.assignment), (33 + 64) / 2);
  const Proposal fourth = driver.Ask();
  EXPECT_EQ(fourth.tag, first.tag);
  EXPECT_EQ(MicroBatchOf(fourth.assignment), (1 + 31) / 2);
  EXPECT_EQ(driver.Ask().tag, 2);
}

TEST(BinaryTest, IfNothingFitsANewLineageStartsAfterTheHalvings) {
  for (int64_t range = 1; range <= 40; ++range) {
    Driven<BinaryMethod> driver(TestSpace({1, 2}, range), TestOptions());
    int64_t trials = 0;
    int64_t smallest = range;
    for (;; ++trials) {
      const Proposal proposal = driver.Step(0);
      if (proposal.tag != 0) break;
      smallest = MicroBatchOf(proposal.assignment);
    }
    EXPECT_LE(trials, BisectionTrials(range));
    EXPECT_EQ(smallest, 1);
  }
}

TEST(BinaryTest, IfTheRangeIsTooSmallItsTopIsTriedThenPublishedBehaviorGivesUp) {
  for (int64_t range = 1; range <= 40; ++range) {
    Driven<BinaryMethod> driver(TestSpace({1, 2}, range), TestOptions(true));
    int64_t trials = 0;
    int64_t largest = 0;
    for (;; ++trials) {
      const Proposal proposal = driver.Step(10 * range);
      if (proposal.tag != 0) break;
      largest = MicroBatchOf(proposal.assignment);
    }
    EXPECT_LE(trials, BisectionTrials(range));
    EXPECT_EQ(largest, range);
  }
}

TEST(BinaryTest, IfTheRangeIsTooSmallItDoublesUntilASizeIsTooLarge) {
  constexpr int64_t kLimit = 100;
  Driven<BinaryMethod> driver(TestSpace({1}, 6), TestOptions());
  std::vector<int64_t> sizes;
  for (Proposal p = driver.Step(kLimit); p.tag == 0; p = driver.Step(kLimit)) {
    sizes.push_back(MicroBatchOf(p.assignment));
  }
  EXPECT_EQ(sizes,
            (std::vector<int64_t>{3, 5, 6, 12, 24, 48, 96, 192, 144, 120, 108, 102, 99, 100, 101}));
}

TEST(BinaryTest, ARangeDoesNotGrowWhenItsTopIsNotTheBest) {
  Driven<BinaryMethod> driver(TestSpace({1}, 2), TestOptions());
  const Proposal one = driver.Ask();
  EXPECT_EQ(MicroBatchOf(one.assignment), 1);
  driver.Tell(one, TrialState::kSucceeded, 5);
  const Proposal two = driver.Ask();
  EXPECT_EQ(MicroBatchOf(two.assignment), 2);
  driver.Tell(two, TrialState::kSucceeded, 4);
  EXPECT_EQ(driver.Ask().tag, 1);
}

TEST(BinaryTest, WithoutAnyLimitGrowthEnds) {
  Driven<BinaryMethod> driver(TestSpace({1}, 1), TestOptions());
  int64_t largest = 0;
  for (Proposal p = driver.Step(INT64_MAX); p.tag == 0; p = driver.Step(INT64_MAX)) {
    largest = MicroBatchOf(p.assignment);
  }
  EXPECT_LE(largest, kLargestMicroBatch);
  EXPECT_GT(2 * largest, kLargestMicroBatch);
}

TEST(BinaryTest, AFailedTrialEndsItsLineageAndMovesNoBound) {
  Driven<BinaryMethod> driver(TestSpace({1}, 64), TestOptions());
  const Proposal first = driver.Ask();
  driver.Tell(first, TrialState::kFailed);
  const Proposal second = driver.Ask();
  EXPECT_EQ(second.tag, 1);
  EXPECT_EQ(MicroBatchOf(second.assignment), 32);

  Driven<BinaryMethod> other(TestSpace({1}, 64), TestOptions(true));
  other.Tell(other.Ask(), TrialState::kFailed);
  const Proposal smaller = other.Ask();
  EXPECT_EQ(smaller.tag, 0);
  EXPECT_EQ(MicroBatchOf(smaller.assignment), 16);
}

TEST(BinaryTest, TheRangeFactorStretchesTheRange) {
  const std::vector<std::pair<double, int64_t>> cases = {
      {1, 5}, {2, 10}, {0.5, 3}, {0.25, 1}, {0.01, 1}};
  for (const auto& [factor, first] : cases) {
    SearchOptions options;
    options.lineages.search_range_factor = factor;
    BinaryMethod method(TestSpace({1}, 10), options);
    EXPECT_EQ(MicroBatchOf(Driver(method).Ask().assignment), first) << factor;
  }
}

TEST(BinaryTest, AStagePredictedNotToFitStartsAtOne) {
  BinaryMethod method(TestSpace({1}, 0), TestOptions());
  EXPECT_EQ(MicroBatchOf(Driver(method).Ask().assignment), 1);
}

}  // namespace
}  // namespace dsat
