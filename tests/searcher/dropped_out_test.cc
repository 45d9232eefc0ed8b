// Tests that the answer is none that a later run has disproved, and the speed of its alternatives.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "searcher/verdict.h"
#include "tests/searcher/simulated_device.h"
#include "tests/searcher/simulated_trials.h"

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

TEST(DroppedOutTest, TheSafestAlternativeIsAsFastInTheConfirmation) {
  Search search(ConfirmedSpec());
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
