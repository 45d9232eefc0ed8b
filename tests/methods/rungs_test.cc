// Tests rungs, ranks and promotions on tables of lineages that are written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "methods/asha.h"
#include "methods/lineage.h"
#include "tests/methods/method_testing.h"

namespace dsat {
namespace {

// A step in the middle of a range so wide that its bisection is far from over.
constexpr Step kWideStep = {.low = 1, .high = 10000, .micro_batch = 5000};
constexpr Step kLastStep = {.low = 5, .high = 5, .micro_batch = 5};

RungIndex IndexOf(const LineageTable& table) {
  RungIndex index;
  for (const Lineage& lineage : table.lineages())
    index.Update(table, lineage);
  return index;
}

// The answers of a new index of the current table.
std::optional<RungStep> NextPromotion(const LineageTable& table) {
  return IndexOf(table).NextPromotion(table);
}

std::optional<RungStep> NextContinuation(const LineageTable& table) {
  return IndexOf(table).NextContinuation(table);
}

LineageTable MakeTable(const SearchOptions& options = TestOptions()) {
  return LineageTable(TestSpace({1, 2}, 10000), options);
}

// A lineage with `count` successes in a rung, the best of them `best`.
Lineage& AddLineage(LineageTable& table, int64_t rung, int64_t count, double best) {
  Lineage& lineage = table.Draw();
  for (int64_t i = 0; i < count; ++i) {
    AddTrial(table, lineage, kWideStep, rung, TrialState::kSucceeded, best);
  }
  return lineage;
}

TEST(RungsTest, ARungTakesMinTrialsTimesThePowerOfTheDivisor) {
  SearchOptions options;
  EXPECT_EQ(TrialsToComplete(options, 0), 3);
  EXPECT_EQ(TrialsToComplete(options, 1), 6);
  EXPECT_EQ(TrialsToComplete(options, 4), 48);
  options.asha.asha_early_stopping = 1;
  EXPECT_EQ(TrialsToComplete(options, 0), 6);
  options.asha.divisor = 4;
  options.asha.min_binary_search_trials = 5;
  EXPECT_EQ(TrialsToComplete(options, 1), 80);
  EXPECT_EQ(TrialsToComplete(options, 1000), INT64_MAX);
}

TEST(RungsTest, ARungIsCompletedExactlyFromItsNumberOfTrialsAndSoAreAllLowerOnes) {
  LineageTable table = MakeTable();
  Lineage& lineage = table.Draw();
  for (int64_t count = 1; count <= 50; ++count) {
    AddTrial(table, lineage, kWideStep, 0, TrialState::kInfeasible);
    for (int64_t rung = 0; rung < 5; ++rung) {
      EXPECT_EQ(CompletedRung(table, lineage, rung), count >= (int64_t{3} << rung));
    }
  }
}

TEST(RungsTest, ALineageHasCompletedTheRungsBelowItsOwn) {
  LineageTable table = MakeTable();
  const Lineage& lineage = AddLineage(table, 2, 1, 1);
  EXPECT_TRUE(CompletedRung(table, lineage, 0));
  EXPECT_TRUE(CompletedRung(table, lineage, 1));
  EXPECT_FALSE(CompletedRung(table, lineage, 2));
}

TEST(RungsTest, AFinishedBisectionCompletesItsRungHalfway) {
  LineageTable table = MakeTable(TestOptions(true));
  Lineage& lineage = table.Draw();
  AddTrial(table, lineage, kLastStep, 0, TrialState::kSucceeded, 1);
  EXPECT_TRUE(CompletedRung(table, lineage, 0));
  EXPECT_FALSE(CompletedRung(table, lineage, 1));
  EXPECT_FALSE(NextBisectionStep(table, lineage));
}

TEST(RungsTest, AFailureAtTheLowestSizeCompletesItsRungHalfway) {
  for (const bool compat : {false, true}) {
    LineageTable table = MakeTable(TestOptions(compat));
    Lineage& lineage = table.Draw();
    AddTrial(table, lineage, {.low = 4, .high = 9, .micro_batch = 4}, 0, TrialState::kInfeasible);
    EXPECT_TRUE(CompletedRung(table, lineage, 0));
    EXPECT_FALSE(CompletedRung(table, lineage, 1));
  }
}

TEST(RungsTest, ALineageWhoseLastTrialRunsHasNotFinishedItsBisection) {
  LineageTable table = MakeTable(TestOptions(true));
  Lineage& lineage = table.Draw();
  table.Propose(lineage, kLastStep);
  EXPECT_FALSE(CompletedRung(table, lineage, 0));
  EXPECT_FALSE(NextContinuation(table));
}

TEST(RungsTest, TheBestTrialOfALineageIsSoughtUpToARung) {
  for (const std::string metric : {"throughput", "latency"}) {
    SearchOptions options;
    options.metric = metric;
    LineageTable table = MakeTable(options);
    Lineage& lineage = table.Draw();
    const double sign = metric == "latency" ? -1 : 1;
    for (int64_t rung = 0; rung < 6; ++rung) {
      AddTrial(table, lineage, kWideStep, rung, TrialState::kSucceeded, 100 + sign * rung);
    }
    for (int64_t rung = 0; rung < 6; ++rung) {
      EXPECT_EQ(table.BestMetric(lineage, rung), 100 + sign * rung);
    }
  }
}

TEST(RungsTest, TheBestFractionOfARungIsPromotedBestFirst) {
  for (const std::string metric : {"throughput", "latency"}) {
    for (const int64_t divisor : {2, 3, 4}) {
      SearchOptions options;
      options.metric = metric;
      options.asha.divisor = divisor;
      LineageTable table = MakeTable(options);
      const std::vector<double> values = {5, 9, 1, 8, 2, 7, 3, 6, 4};
      for (const double value : values)
        AddLineage(table, 0, 3, value);
      AddLineage(table, 0, 2, 1000);  // Has not completed the rung.
      AddLineage(table, 0, 2, -1000);
      for (size_t i = 0; i < values.size() / static_cast<size_t>(divisor); ++i) {
        const std::optional<RungStep> promotion = NextPromotion(table);
        ASSERT_TRUE(promotion);
        const double expected = metric == "latency" ? 1.0 + i : 9.0 - i;
        EXPECT_EQ(table.BestMetric(table.at(promotion->lineage)), expected);
        table.Propose(table.at(promotion->lineage), promotion->step, promotion->rung);
      }
      EXPECT_FALSE(NextPromotion(table));
    }
  }
}

TEST(RungsTest, LineagesWithoutAMeasurementCountButAreNeverPromoted) {
  LineageTable table = MakeTable();
  for (int i = 0; i < 3; ++i) {
    Lineage& lineage = table.Draw();
    AddTrial(table, lineage, {.low = 1, .high = 1, .micro_batch = 1}, 0, TrialState::kInfeasible);
  }
  AddLineage(table, 0, 3, 1);
  const std::optional<RungStep> promotion = NextPromotion(table);
  ASSERT_TRUE(promotion);
  EXPECT_EQ(promotion->lineage, 3);
  table.Propose(table.at(3), promotion->step, promotion->rung);
  EXPECT_FALSE(NextPromotion(table));
}

TEST(RungsTest, APromotionContinuesTheBestLineageOneRungHigher) {
  LineageTable table = MakeTable();
  AddLineage(table, 0, 3, 1);
  EXPECT_FALSE(NextPromotion(table)) << "one of one is no top half";
  AddLineage(table, 0, 3, 2);
  const std::optional<RungStep> promotion = NextPromotion(table);
  ASSERT_TRUE(promotion);
  EXPECT_EQ(promotion->lineage, 1);
  EXPECT_EQ(promotion->rung, 1);
  EXPECT_EQ(promotion->step.low, 5001);
  table.Propose(table.at(1), promotion->step, promotion->rung);
  EXPECT_EQ(table.at(1).trials.size(), 4u);
  EXPECT_FALSE(NextPromotion(table)) << "it is promoted once";
}

TEST(RungsTest, PromotionsFromTheHighestRungComeFirst) {
  LineageTable table = MakeTable();
  AddLineage(table, 0, 3, 10);
  AddLineage(table, 0, 3, 9);
  EXPECT_EQ(NextPromotion(table)->lineage, 0);
  AddLineage(table, 1, 6, 2);
  AddLineage(table, 1, 6, 3);
  const std::optional<RungStep> promotion = NextPromotion(table);
  EXPECT_EQ(promotion->lineage, 3);
  EXPECT_EQ(promotion->rung, 2);
  // Once that one has gone up, the lower rung is served.
  table.Propose(table.at(3), promotion->step, promotion->rung);
  EXPECT_EQ(NextPromotion(table)->lineage, 0);
}

TEST(RungsTest, RanksInARungIgnoreWhatLineagesDidAboveIt) {
  LineageTable table = MakeTable();
  AddLineage(table, 0, 3, 1);
  AddTrial(table, table.at(0), kWideStep, 1, TrialState::kSucceeded, 1000);
  AddLineage(table, 0, 3, 2);
  const std::optional<RungStep> promotion = NextPromotion(table);
  ASSERT_TRUE(promotion);
  EXPECT_EQ(promotion->lineage, 1);
}

TEST(RungsTest, NothingLeavesTheTopRung) {
  SearchOptions options;
  options.asha.max_rungs = 3;
  LineageTable table = MakeTable(options);
  for (int i = 0; i < 4; ++i) {
    const Lineage& lineage = AddLineage(table, 2, TrialsToComplete(options, 2), i);
    EXPECT_TRUE(CompletedRung(table, lineage, options.asha.max_rungs - 1));
  }
  EXPECT_FALSE(NextPromotion(table));
  EXPECT_FALSE(NextContinuation(table));
}

TEST(RungsTest, AnExhaustedLineageIsPassedOverByDefaultAndBlocksInPublishedBehavior) {
  for (const bool compat : {false, true}) {
    LineageTable table = MakeTable(TestOptions(compat));
    Lineage& best = table.Draw();
    AddTrial(table, best, {.low = 1, .high = 9, .micro_batch = 5}, 0, TrialState::kSucceeded, 9);
    AddTrial(table, best, {.low = 6, .high = 6, .micro_batch = 6}, 0, TrialState::kInfeasible);
    ASSERT_FALSE(NextBisectionStep(table, best));
    for (const double value : {8, 7, 6})
      AddLineage(table, 0, 3, value);
    const std::optional<RungStep> promotion = NextPromotion(table);
    EXPECT_EQ(promotion.has_value(), !compat);
    if (promotion) {
      EXPECT_EQ(promotion->lineage, 1);
    }
  }
}

TEST(RungsTest, TheContinuationIsOfTheHighestRungThenOfTheMostCompletedTrials) {
  LineageTable table = MakeTable();
  EXPECT_FALSE(NextContinuation(table));
  AddLineage(table, 0, 1, 1);
  AddLineage(table, 0, 2, 1);
  AddLineage(table, 0, 2, 1);
  EXPECT_EQ(NextContinuation(table)->lineage, 1);
  AddLineage(table, 1, 4, 1);
  AddLineage(table, 1, 5, 1);
  EXPECT_EQ(NextContinuation(table)->lineage, 4);
  EXPECT_EQ(NextContinuation(table)->rung, 1);
  table.Propose(table.at(4), kWideStep, 1);  // Running: not to be continued now.
  EXPECT_EQ(NextContinuation(table)->lineage, 3);
}

// The same answers from a loop over all lineages, with which the index must agree.
std::vector<const Lineage*> WalkedTop(const LineageTable& table, int64_t rung) {
  int64_t num_completed = 0;
  std::vector<std::pair<double, const Lineage*>> ranked;
  for (const Lineage& lineage : table.lineages()) {
    if (!CompletedRung(table, lineage, rung)) continue;
    ++num_completed;
    const std::optional<double> best = table.BestMetric(lineage, rung);
    if (best) ranked.emplace_back(*best, &lineage);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](const auto& a, const auto& b) { return table.Better(a.first, b.first); });
  const auto size = static_cast<size_t>(num_completed / table.options().asha.divisor);
  std::vector<const Lineage*> top;
  for (size_t i = 0; i < std::min(size, ranked.size()); ++i)
    top.push_back(ranked[i].second);
  return top;
}

std::optional<RungStep> WalkedPromotion(const LineageTable& table) {
  // Nothing leaves the top rung, max_rungs - 1.
  for (int64_t rung = table.options().asha.max_rungs - 2; rung >= 0; --rung) {
    for (const Lineage* lineage : WalkedTop(table, rung)) {
      if (lineage->Rung() > rung || !lineage->Idle()) continue;  // Promoted, or about to be ranked.
      const std::optional<Step> step = NextBisectionStep(table, *lineage);
      if (step) return RungStep{lineage->number, *step, lineage->Rung() + 1};
      if (table.policy().exhausted_lineage_blocks_promotion) return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<RungStep> WalkedContinuation(const LineageTable& table) {
  const Lineage* chosen = nullptr;
  for (const Lineage& lineage : table.lineages()) {
    if (!lineage.Idle() || CompletedRung(table, lineage, lineage.Rung())) continue;
    const auto rank = [](const Lineage& l) { return std::pair(l.Rung(), l.NumCompleted()); };
    if (chosen == nullptr || rank(lineage) > rank(*chosen)) chosen = &lineage;
  }
  if (chosen == nullptr) return std::nullopt;
  return RungStep{chosen->number, *NextBisectionStep(table, *chosen), chosen->Rung()};
}

void ExpectSame(const std::optional<RungStep>& got, const std::optional<RungStep>& expected) {
  ASSERT_EQ(got.has_value(), expected.has_value());
  if (!got) return;
  EXPECT_EQ(got->lineage, expected->lineage);
  EXPECT_EQ(got->rung, expected->rung);
  EXPECT_EQ(got->step.micro_batch, expected->step.micro_batch);
}

// Keeps four trials running on `table`, as asha does, with random outcomes in random order. Some
// lineages are promoted meanwhile.
void ExpectTheIndexFollows(LineageTable table, uint64_t seed) {
  RungIndex index;
  Rng chance(seed, 0, "outcomes");
  std::vector<Lineage*> running;
  int num_promoted = 0;
  for (int i = 0; i < 600; ++i) {
    ExpectSame(index.NextPromotion(table), WalkedPromotion(table));
    ExpectSame(index.NextContinuation(table), WalkedContinuation(table));
    if (running.size() < 4) {
      const std::optional<RungStep> promotion = index.NextPromotion(table);
      const std::optional<RungStep> next = promotion ? promotion : index.NextContinuation(table);
      if (promotion) ++num_promoted;
      Lineage& lineage = next ? table.at(next->lineage) : table.Draw();
      table.Propose(lineage, next ? next->step : kWideStep, next ? next->rung : 0);
      running.push_back(&lineage);
      index.Update(table, lineage);
      continue;
    }
    const size_t ended = chance.Below(running.size());
    const auto state = std::array{TrialState::kSucceeded, TrialState::kSucceeded,
                                  TrialState::kInfeasible, TrialState::kFailed}[chance.Below(4)];
    // Few values, so that many are equal.
    const auto value = static_cast<double>(chance.Below(6));
    index.Update(table, table.Tell(running[ended]->number, EndedTrial(i, state, value)));
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(ended));
  }
  EXPECT_GT(num_promoted, 0);
}

TEST(RungsTest, TheIndexAgreesWithAWalkOverAllLineagesAfterEveryChange) {
  for (const std::string metric : {"latency", "throughput"}) {
    for (const bool compat_determined : {false, true}) {
      SearchOptions options = TestOptions(compat_determined);
      options.metric = metric;
      for (const uint64_t seed : {1, 2, 3})
        ExpectTheIndexFollows(MakeTable(options), seed);
    }
  }
}

}  // namespace
}  // namespace dsat
