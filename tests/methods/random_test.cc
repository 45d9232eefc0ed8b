// Ranges, stopping and stage pruning of random, by default and as published.
#include "methods/random.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "tests/methods/method_testing.h"

namespace dsat {
namespace {

const LineageTrial& Latest(const RandomMethod& method, const Proposal& proposal) {
  return method.table().lineages().at(static_cast<size_t>(proposal.tag)).trials.back();
}

void ExpectInRange(const LineageTrial& trial) {
  EXPECT_LE(1, trial.step.low);
  EXPECT_LE(trial.step.low, trial.step.micro_batch);
  EXPECT_LE(trial.step.micro_batch, trial.step.high);
}

class RandomInBothModes : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, RandomInBothModes, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("Published") : std::string("Default");
});

TEST_P(RandomInBothModes, DrawsAreOfTheStageAndWithinTheRange) {
  for (const int stage : {0, 1, 2, 3}) {
    RandomMethod method(TestSpace({stage}, 17), TestOptions(GetParam()));
    std::set<int64_t> sizes;
    for (int i = 0; i < 100; ++i) {
      const Proposal proposal = *method.Ask();
      EXPECT_EQ(StageOf(proposal.assignment), stage);
      EXPECT_EQ(Latest(method, proposal).step.low, 1);
      EXPECT_EQ(Latest(method, proposal).step.high, 17);
      ExpectInRange(Latest(method, proposal));
      sizes.insert(MicroBatchOf(proposal.assignment));
    }
    EXPECT_GT(sizes.size(), 4u);
  }
}

TEST_P(RandomInBothModes, AfterABestTheRangesStillHoldTheirSizes) {
  for (const int stage : {0, 1, 2, 3}) {
    Driven<RandomMethod> driver(TestSpace({stage}, 9), TestOptions(GetParam()));
    const Proposal first = driver.Ask();
    const int64_t best = MicroBatchOf(first.assignment);
    driver.Tell(first, TrialState::kSucceeded, 1);
    driver.Ask();  // The first lineage goes on.
    for (int i = 0; i < 50; ++i) {
      const Proposal fresh = driver.Ask();
      ExpectInRange(Latest(driver.method, fresh));
      const Step& step = Latest(driver.method, fresh).step;
      if (GetParam()) {
        EXPECT_EQ(step.low, best + 1);
        EXPECT_EQ(step.high, std::max<int64_t>(9, 2 * (best + 1)));
      } else {
        EXPECT_LE(step.low, best) << "knobs must be compared at the best size too";
        EXPECT_EQ(step.high, 2 * best);
      }
    }
  }
}

TEST_P(RandomInBothModes, ALineageGetsItsTrialsAlthoughAllAreTooLarge) {
  for (int64_t allowed = 1; allowed <= 8; ++allowed) {
    SearchOptions options = TestOptions(GetParam());
    options.random.trials_per_random_config = allowed;
    Driven<RandomMethod> driver(TestSpace({1}, kLargestMicroBatch), options);
    for (int64_t i = 0; i < allowed; ++i)
      EXPECT_EQ(driver.Step(0).tag, 0);
    EXPECT_EQ(driver.Step(0).tag, 1);
  }
}

TEST_P(RandomInBothModes, ALineageGetsItsTrialsIfAllSucceed) {
  for (int64_t allowed = 1; allowed <= 8; ++allowed) {
    SearchOptions options = TestOptions(GetParam());
    options.random.trials_per_random_config = allowed;
    Driven<RandomMethod> driver(TestSpace({2}, 4), options);
    int64_t previous = 0;
    for (int64_t i = 0; i < allowed; ++i) {
      const Proposal proposal = driver.Step(INT64_MAX);
      EXPECT_EQ(proposal.tag, 0);
      EXPECT_GT(MicroBatchOf(proposal.assignment), previous) << "a success moves the range up";
      previous = MicroBatchOf(proposal.assignment);
    }
    EXPECT_EQ(driver.Step(INT64_MAX).tag, 1);
  }
}

TEST_P(RandomInBothModes, ALineageReachesEveryTargetWithinItsRange) {
  SearchOptions options = TestOptions(GetParam());
  options.random.trials_per_random_config = 1000;
  ExpectEveryTargetIsTried<RandomMethod>(options, 24, 24);
}

TEST_P(RandomInBothModes, ALineageAtItsCapStopsHoweverItsTrialsEnded) {
  for (const TrialState state : {TrialState::kSucceeded, TrialState::kInfeasible}) {
    SearchOptions options = TestOptions(GetParam());
    options.random.trials_per_random_config = 1;
    Driven<RandomMethod> driver(TestSpace({1}, 1000), options);
    const Proposal proposal = driver.Ask();
    driver.Tell(proposal, state, 1);
    EXPECT_TRUE(driver.method.ShouldStop(driver.method.table().lineages()[0]));
  }
}

TEST_P(RandomInBothModes, ALineageWhoseLowestSizeIsTooLargeStops) {
  Driven<RandomMethod> driver(TestSpace({1}, 1), TestOptions(GetParam()));
  driver.Tell(driver.Ask(), TrialState::kInfeasible);
  EXPECT_TRUE(driver.method.ShouldStop(driver.method.table().lineages()[0]));
}

TEST_P(RandomInBothModes, BelowAHardCeilingAtTwoOnlyOneIsTriedHoweverItEnds) {
  for (const int64_t limit : {0, 1}) {
    for (int64_t seed = 0; seed < 20; ++seed) {
      SearchOptions options = TestOptions(GetParam());
      options.random.trials_per_random_config = 100;
      options.random_seed = seed;
      Driven<RandomMethod> driver(TestSpace({1}, 2), options);
      Proposal proposal = driver.Ask();
      if (MicroBatchOf(proposal.assignment) != 2) continue;
      driver.Tell(proposal, TrialState::kInfeasible);
      proposal = driver.Step(limit);
      EXPECT_EQ(proposal.tag, 0);
      EXPECT_EQ(MicroBatchOf(proposal.assignment), 1);
      EXPECT_TRUE(driver.method.ShouldStop(driver.method.table().lineages()[0]));
    }
  }
}

TEST_P(RandomInBothModes, AnErroredLineageStopsOnceItsStageRunsAsLargeElsewhere) {
  SearchOptions options = TestOptions(GetParam());
  options.random.trials_per_random_config = 100;
  Driven<RandomMethod> driver(TestSpace({2}, 200), options);
  const Proposal errored = driver.Ask();
  const Proposal other = driver.Ask();
  driver.Tell(errored, TrialState::kInfeasible);
  const Lineage& lineage = driver.method.table().lineages()[0];
  EXPECT_FALSE(driver.method.ShouldStop(lineage));
  Proposal grown = other;
  driver.Tell(other, TrialState::kSucceeded, 1);
  while (MicroBatchOf(grown.assignment) < lineage.trials[0].step.high) {
    ASSERT_FALSE(driver.method.ShouldStop(driver.method.table().lineages()[1]));
    grown = driver.Ask();
    if (grown.tag == 0) {  // Its only follow-up: leave it running, and continue with the other.
      driver.Tell(grown, TrialState::kInfeasible);
      continue;
    }
    driver.Tell(grown, TrialState::kSucceeded, static_cast<double>(MicroBatchOf(grown.assignment)));
  }
  EXPECT_TRUE(driver.method.ShouldStop(lineage));
}

TEST(RandomTest, PublishedBehaviorStopsStage3OnceStage1Or2Succeeded) {
  for (const bool compat : {true, false}) {
    for (const int lower : {0, 1, 2}) {
      Driven<RandomMethod> driver(TestSpace({3, lower}, 100), TestOptions(compat));
      std::map<int, Proposal> of_stage;
      while (of_stage.size() < 2) {
        const Proposal proposal = driver.Ask();
        of_stage.emplace(StageOf(proposal.assignment), proposal);
      }
      const auto stage3 = static_cast<size_t>(of_stage[3].tag);
      driver.Tell(of_stage[3], TrialState::kSucceeded, 1);
      EXPECT_FALSE(driver.method.ShouldStop(driver.method.table().lineages()[stage3]))
          << "a success of stage 3 itself does not stop it";
      driver.Tell(of_stage[lower], TrialState::kSucceeded, 1);
      EXPECT_EQ(driver.method.ShouldStop(driver.method.table().lineages()[stage3]),
                compat && lower != 0);
    }
  }
}

TEST(RandomTest, AFailedStage1TrialDoesNotStopStage3) {
  Driven<RandomMethod> driver(TestSpace({3, 1}, 100), TestOptions(true));
  std::map<int, Proposal> of_stage;
  while (of_stage.size() < 2) {
    const Proposal proposal = driver.Ask();
    of_stage.emplace(StageOf(proposal.assignment), proposal);
  }
  driver.Tell(of_stage[1], TrialState::kInfeasible);
  driver.Tell(of_stage[3], TrialState::kSucceeded, 1);
  EXPECT_FALSE(driver.method.ShouldStop(
      driver.method.table().lineages()[static_cast<size_t>(of_stage[3].tag)]));
}

TEST(RandomTest, PublishedBehaviorReplacesEveryQueuedStage3LineageOnceStage1Succeeded) {
  Driven<RandomMethod> driver(TestSpace({1, 3}, 100), TestOptions(true));
  std::vector<Proposal> stage3;
  std::optional<Proposal> stage1;
  while (stage3.size() < 10 || !stage1) {
    const Proposal proposal = driver.Ask();
    if (StageOf(proposal.assignment) == 3) {
      stage3.push_back(proposal);
    } else {
      stage1 = proposal;
    }
  }
  for (const Proposal& proposal : stage3)
    driver.Tell(proposal, TrialState::kSucceeded, 1);
  driver.Tell(*stage1, TrialState::kSucceeded, 1);
  for (int i = 0; i < 40; ++i)
    EXPECT_EQ(StageOf(driver.Ask().assignment), 1);
}

TEST(RandomTest, ByDefaultStage3IsDrawnLessButStillDrawnOnceStage1Succeeded) {
  Driven<RandomMethod> driver(TestSpace({1, 3}, 100), TestOptions());
  Proposal proposal = driver.Ask();
  while (StageOf(proposal.assignment) != 1)
    proposal = driver.Ask();
  driver.Tell(proposal, TrialState::kSucceeded, 1);
  int stage3 = 0;
  for (int i = 0; i < 1000; ++i)
    stage3 += StageOf(driver.Ask().assignment) == 3 ? 1 : 0;
  EXPECT_NEAR(stage3, 200, 80);
}

TEST(RandomTest, ByDefaultNewRangesStayBelowTheSmallestSizeThatDidNotFit) {
  Driven<RandomMethod> driver(TestSpace({1}, 64), TestOptions());
  for (int i = 0; i < 60; ++i)
    driver.Step(20);
  int64_t too_large = 64;
  for (const Lineage& lineage : driver.method.table().lineages()) {
    for (const LineageTrial& trial : lineage.trials) {
      if (trial.evidence == SizeEvidence::kTooLarge) {
        too_large = std::min(too_large, trial.step.micro_batch);
      }
    }
  }
  // Drains the queue; new lineages then start at their first trial.
  Proposal fresh = driver.Ask();
  while (driver.method.table().lineages().at(static_cast<size_t>(fresh.tag)).trials.size() > 1) {
    fresh = driver.Ask();
  }
  EXPECT_LT(Latest(driver.method, fresh).step.high, too_large);
}

TEST(RandomTest, AFailedTrialEndsItsLineageAndIsNoEvidence) {
  Driven<RandomMethod> driver(TestSpace({1}, 64), TestOptions());
  driver.Tell(driver.Ask(), TrialState::kFailed);
  const Proposal fresh = driver.Ask();
  EXPECT_EQ(fresh.tag, 1);
  EXPECT_EQ(Latest(driver.method, fresh).step.high, 64);

  Driven<RandomMethod> other(TestSpace({1}, 64), TestOptions(true));
  other.Tell(other.Ask(), TrialState::kFailed);
  EXPECT_EQ(other.Ask().tag, 0);
}

TEST(RandomTest, EarlyStoppingCountsTrialsSinceTheLastNewBest) {
  SearchOptions options;
  options.random.early_stopping = 3;
  Driven<RandomMethod> driver(TestSpace({1}, 1000), options);
  // Errors before the first success do not count.
  for (int i = 0; i < 5; ++i)
    driver.Tell(driver.Ask(), TrialState::kInfeasible);
  driver.Tell(driver.Ask(), TrialState::kSucceeded, 5);
  driver.Tell(driver.Ask(), TrialState::kInfeasible);
  driver.Tell(driver.Ask(), TrialState::kSucceeded, 5);  // Equal is not better.
  driver.Tell(driver.Ask(), TrialState::kSucceeded, 6);
  driver.Tell(driver.Ask(), TrialState::kSucceeded, 5);
  driver.Tell(driver.Ask(), TrialState::kFailed);
  ASSERT_TRUE(driver.method.Ask());
  driver.Tell(driver.Ask(), TrialState::kInfeasible);
  EXPECT_FALSE(driver.method.Ask());
  EXPECT_FALSE(driver.method.Ask());
}

// A search that never beats the submitted configuration has found no new best.
TEST(RandomTest, TheSubmittedTrialCountsForEarlyStopping) {
  SearchOptions options;
  options.random.early_stopping = 2;
  RandomMethod method(TestSpace({1}, 1000), options);
  method.Observe(EndedTrial(1, TrialState::kSucceeded, 10));
  for (TrialId id = 2; id < 4; ++id) {
    const std::optional<Proposal> proposal = method.Ask();
    ASSERT_TRUE(proposal);
    method.Tell(proposal->tag, EndedTrial(id, TrialState::kSucceeded, 9));
  }
  EXPECT_FALSE(method.Ask());

  RandomMethod failed(TestSpace({1}, 1000), options);
  failed.Observe(EndedTrial(1, TrialState::kInfeasible));
  for (TrialId id = 2; id < 4; ++id)
    failed.Tell(failed.Ask()->tag, EndedTrial(id, TrialState::kSucceeded, static_cast<double>(id)));
  EXPECT_TRUE(failed.Ask());
}

TEST(RandomTest, ProfilesAndConfirmationsDoNotCountForEarlyStopping) {
  SearchOptions options;
  options.random.early_stopping = 2;
  RandomMethod method(TestSpace({1}, 1000), options);
  TrialId id = 1;
  for (const TrialKind kind : {TrialKind::kProfile, TrialKind::kConfirm, TrialKind::kConfirm}) {
    Trial trial = EndedTrial(id++, TrialState::kSucceeded, 1000);
    trial.kind = kind;
    method.Observe(trial);
  }
  for (int i = 0; i < 2; ++i) {
    const std::optional<Proposal> proposal = method.Ask();
    ASSERT_TRUE(proposal);
    method.Tell(proposal->tag, EndedTrial(id++, TrialState::kSucceeded, 9 + i));
  }
  EXPECT_TRUE(method.Ask());
}

TEST(RandomTest, OneTrialThatAnswersSeveralProposalsCountsOnceForEarlyStopping) {
  SearchOptions options;
  options.random.early_stopping = 2;
  RandomMethod method(TestSpace({1}, 1000), options);
  for (int i = 0; i < 5; ++i) {
    method.Tell(method.Ask()->tag, EndedTrial(7, TrialState::kSucceeded, 1));
    method.Tell(method.Ask()->tag, EndedTrial(-1, TrialState::kInfeasible));  // Refused: no trial.
  }
  EXPECT_TRUE(method.Ask());
}

}  // namespace
}  // namespace dsat
