// Tests the stages of a search: profile, submitted configuration, limits, ends, refusals.
#include "searcher/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "searcher/search/verdict.h"
#include "tests/base/error_code.h"
#include "tests/searcher/search/simulated_device.h"

namespace dsat {
namespace {

using testing::HasSubstr;

// Runs the profiling trial, so that the submitted configuration is next.
Search Profiled(const ExperimentSpec& spec) {
  Search search(spec);
  const std::optional<Trial> profile = search.Ask();
  DSAT_CHECK(profile && profile->kind == TrialKind::kProfile);
  Tell(search, profile->id, Success(*profile, 1));
  return search;
}

// --- The course of a search. ---------------------------------------------------------------------

TEST(SearchTest, TheProfilingTrialComesFirstAndAlone) {
  Search search(SimulatedSpec("binary"));
  const std::optional<Trial> trial = search.Ask();
  ASSERT_TRUE(trial);
  EXPECT_EQ(trial->id, 0);
  EXPECT_EQ(trial->kind, TrialKind::kProfile);
  EXPECT_EQ(trial->ds_config.at("train_micro_batch_size_per_gpu"), 1);
  EXPECT_EQ(trial->ds_config.at("gradient_accumulation_steps"), 1);
  EXPECT_EQ(trial->ds_config.at("train_batch_size"), 2);
  EXPECT_EQ(trial->ds_config.at("/zero_optimization/stage"_json_pointer), 1);
  EXPECT_FALSE(search.Ask());
  EXPECT_FALSE(search.Finished());
}

TEST(SearchTest, ThePublishedProfilingTrialKeepsTheAccumulationAndTheSearchFollowsAtOnce) {
  ExperimentSpec spec = SimulatedSpec("binary");
  spec.options.compat_determined = true;
  Search search(spec);
  const std::optional<Trial> profile = search.Ask();
  EXPECT_EQ(profile->ds_config.at("gradient_accumulation_steps"), 2);
  Tell(search, 0, Success(*profile, 1));
  EXPECT_EQ(search.Ask()->kind, TrialKind::kSearch);
  EXPECT_FALSE(search.Submitted());
}

TEST(SearchTest, TheSubmittedConfigurationComesSecondAsItStands) {
  Search search = Profiled(SimulatedSpec("binary"));
  EXPECT_TRUE(search.profile());
  EXPECT_EQ(search.space()->stages.size(), 3u);
  EXPECT_FALSE(search.Submitted());
  const std::optional<Trial> trial = search.Ask();
  ASSERT_TRUE(trial);
  EXPECT_EQ(trial->kind, TrialKind::kSubmitted);
  EXPECT_TRUE(trial->assignment.empty());
  EXPECT_EQ(trial->ds_config.at("train_micro_batch_size_per_gpu"), 2);
  EXPECT_EQ(trial->ds_config.at("train_batch_size"), 8);
  EXPECT_EQ(search.Submitted(), 1);
  EXPECT_EQ(search.Ask()->kind, TrialKind::kSearch);
}

TEST(SearchTest, AProfileInTheSpecSavesTheProfilingTrial) {
  ExperimentSpec spec = SimulatedSpec("random");
  spec.profile = SimulatedProfile();
  Search search(spec);
  EXPECT_TRUE(search.space());
  const std::optional<Trial> trial = search.Ask();
  EXPECT_EQ(trial->id, 0);
  EXPECT_EQ(trial->kind, TrialKind::kSubmitted);
  spec.options.compat_determined = true;
  EXPECT_EQ(Search(spec).Ask()->kind, TrialKind::kSearch);
}

TEST(SearchTest, SearchTrialsKeepTheAccumulationAndSetStageSizeAndKnobs) {
  Search search = Profiled(SimulatedSpec("asha"));
  search.Ask();
  for (int i = 0; i < 10; ++i) {
    const std::optional<Trial> trial = search.Ask();
    ASSERT_TRUE(trial);
    const auto size = trial->ds_config.at("train_micro_batch_size_per_gpu").get<int64_t>();
    EXPECT_EQ(trial->ds_config.at("gradient_accumulation_steps"), 2);
    EXPECT_EQ(trial->ds_config.at("train_batch_size"), size * 4);
    for (const auto& [pointer, value] : trial->assignment) {
      EXPECT_EQ(trial->ds_config.at(Json::json_pointer(pointer)), value);
    }
  }
}

TEST(SearchTest, TheBestLeavesTheProfilingTrialOutAndTiesKeepTheFirst) {
  Search search = Profiled(SimulatedSpec("random"));
  EXPECT_FALSE(search.Best());
  for (int i = 0; i < 4; ++i)
    search.Ask();
  Tell(search, 2, Success(search.trials().at(2), 5));
  EXPECT_EQ(search.Best(), 2);
  Tell(search, 3, Failure(TrialState::kInfeasible));
  EXPECT_EQ(search.Best(), 2);
  Tell(search, 4, Success(search.trials().at(4), 5));
  EXPECT_EQ(search.Best(), 2);
  Tell(search, 1, Success(search.trials().at(1), 6));
  EXPECT_EQ(search.Best(), 1);
}

// On one rank there are few configurations, and random goes on to draw them.
TEST(SearchTest, WhereHardlyAnythingIsNewFewProposalsFollowTheEndOfATrial) {
  ExperimentSpec spec = SimulatedSpec("random");
  spec.slots_per_trial = 1;
  spec.options.max_trials = 10'000;
  spec.options.max_concurrent_trials = 16;
  Search search = Profiled(spec);
  int64_t answered = 0, ended = 0, most = 0;  // Since the last start.
  while (!search.Finished()) {
    answered += std::ssize(search.Settle());
    most = std::max(most, answered);
    EXPECT_LE(answered,
              Proposer::kMaxAnsweredInARow + ended * int64_t{Proposer::kMaxAnsweredAfterEnd});
    if (search.Start()) {
      answered = ended = 0;
      continue;
    }
    if (search.Finished()) break;
    const Trial trial = search.trials().at(search.Running()[0]);
    Tell(search, trial.id, OnDevice(trial, false));
    ++ended;
  }
  EXPECT_GT(most, Proposer::kMaxAnsweredInARow);
}

TEST(SearchTest, AProposalEqualToTheSubmittedOneIsAnsweredFromItsRecord) {
  // The grid asks for stage 1, size 2 with the submitted knobs.
  ExperimentSpec spec = SimulatedSpec("grid");
  spec.options.zero_stages = {1};
  for (const bool told_first : {true, false}) {
    Search search = Profiled(spec);
    const std::optional<Trial> submitted = search.Ask();
    if (told_first) Tell(search, submitted->id, Success(*submitted, 50));
    std::vector<int64_t> sizes;
    for (int i = 0; i < 3; ++i) {
      sizes.push_back(search.Ask()->ds_config.at("train_micro_batch_size_per_gpu").get<int64_t>());
    }
    EXPECT_EQ(sizes, (std::vector<int64_t>{1, 4, 8}));
    if (!told_first) Tell(search, submitted->id, Success(*submitted, 50));
    // The method knows the submitted result: it varies knobs at size 2, which is best by far.
    while (const std::optional<Trial> more = search.Ask()) {
      if (more->assignment.size() == 3) break;
      Tell(search, more->id, Failure(TrialState::kInfeasible));
    }
    for (const TrialId id : search.Running()) {
      if (search.trials().at(id).assignment.size() < 3) {
        Tell(search, id, Success(search.trials().at(id), 1));
      }
    }
    const std::optional<Trial> variation = search.Ask();
    ASSERT_TRUE(variation);
    EXPECT_EQ(variation->ds_config.at("train_micro_batch_size_per_gpu"), 2);
  }
}

TEST(SearchTest, EarlyStoppingEndsTheSearchOnceItsRunningTrialsHaveEnded) {
  ExperimentSpec spec = SimulatedSpec("random");
  spec.options.random.early_stopping = 4;
  spec.options.max_concurrent_trials = 3;
  Search search(spec);
  RunToEnd(search, [](const Trial& trial) { return Success(trial, trial.id == 2 ? 10 : 1); });
  EXPECT_LT(search.trials().size(), 12u);
  EXPECT_GE(search.trials().size(), 7u);
  EXPECT_TRUE(search.Running().empty());
  EXPECT_EQ(search.FailureReason(), "");
}

TEST(SearchTest, AFailureIsEvidenceOnlyInPublishedBehavior) {
  for (const bool compat : {false, true}) {
    ExperimentSpec spec = SimulatedSpec("binary");
    spec.options.compat_determined = compat;
    spec.options.zero_stages = {2};
    Search search = Profiled(spec);
    if (!compat) search.Ask();
    const std::optional<Trial> first = search.Ask();
    Tell(search, first->id, Failure(TrialState::kFailed));
    const std::optional<Trial> next = search.Ask();
    const auto size = [](const Trial& trial) {
      return trial.ds_config.at("train_micro_batch_size_per_gpu").get<int64_t>();
    };
    EXPECT_EQ(size(*next) < size(*first), compat);
  }
}

TEST(SearchTest, WhatRanOutOfMemoryAtAStageIsNotTriedLargerThere) {
  ExperimentSpec spec = SimulatedSpec("asha");
  spec.options.zero_stages = {2};
  spec.options.max_trials = 40;
  spec.options.asha.asha_early_stopping = 0;
  Search search = Profiled(spec);
  int64_t least = 0, tried_larger = 0;
  const auto end = [&](const Trial& trial) {
    const int64_t size = trial.ds_config.at("train_micro_batch_size_per_gpu");
    if (size <= 5) return Success(trial, static_cast<double>(size));
    if (least > 0 && size >= least) ++tried_larger;
    least = least == 0 ? size : std::min(least, size);
    return Ending{{TrialState::kInfeasible, "out of device memory: x"}, {}, {}};
  };
  while (const std::optional<Trial> trial = search.Ask())
    Tell(search, trial->id, end(*trial));
  EXPECT_GT(least, 0);
  EXPECT_EQ(tried_larger, 0);
  EXPECT_GT(search.trials().size(), 20u);  // It goes on below what fits.
}

TEST(SearchTest, AfterProfileAndSubmittedAloneTheExperimentHasNotFailed) {
  ExperimentSpec spec = SimulatedSpec("binary");
  spec.options.max_trials = 2;
  Search search(spec);
  RunToEnd(search, AllSucceed);
  EXPECT_EQ(search.trials().size(), 2u);
  EXPECT_EQ(search.FailureReason(), "");
  EXPECT_EQ(search.Best(), 1);
}

TEST(SearchTest, ConfigurationsThatBreakARuleBecomeNoTrials) {
  // DeepSpeed refuses to predivide at stages 2 and 3 unless reduce_scatter is off.
  ExperimentSpec spec = SimulatedSpec("random");
  spec.options.zero_stages = {2, 3};
  spec.ds_config["gradient_predivide_factor"] = 2.0;
  Search search(spec);
  RunToEnd(search, AllSucceed);
  EXPECT_EQ(search.trials().size(), 50u);
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind != TrialKind::kSearch) continue;
    EXPECT_EQ(trial.assignment.at("/zero_optimization/reduce_scatter"), false);
  }

  spec.slots_per_trial = 1;  // No knobs: every configuration breaks the rule.
  Search without(spec);
  RunToEnd(without, AllSucceed);
  EXPECT_EQ(without.trials().size(), 2u);
  EXPECT_EQ(without.FailureReason(), "");

  ExperimentSpec published = SimulatedSpec("random");
  published.options.zero_stages = {3};
  published.options.compat_determined = true;            // No submitted trial.
  published.ds_config["gradient_allreduce_op"] = "sum";  // Refused at stage 3.
  Search nothing(published);
  RunToEnd(nothing, AllSucceed);
  EXPECT_EQ(nothing.trials().size(), 1u);
  EXPECT_THAT(nothing.FailureReason(), HasSubstr("no configuration could be tried"));
  EXPECT_THAT(nothing.FailureReason(), HasSubstr("gradient_allreduce_op"));
}

// --- What is refused. ----------------------------------------------------------------------------

TEST(SearchTest, TellingThatATrialRunsIsRefused) {
  Search search = Profiled(SimulatedSpec("binary"));
  search.Ask();
  EXPECT_EQ(CodeOf([&] { Tell(search, 1, Failure(TrialState::kRunning)); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(search.Running(), std::vector<TrialId>{1});
}

TEST(SearchTest, ASuccessWithoutItsMeasurementIsAFailure) {
  Search search = Profiled(SimulatedSpec("binary"));
  search.Ask();
  search.Tell(1, {TrialState::kSucceeded, ""}, {}, std::nullopt);
  EXPECT_EQ(search.trials().at(1).state, TrialState::kFailed);
  EXPECT_THAT(search.trials().at(1).reason, HasSubstr("FLOPS_per_gpu"));
}

TEST(SearchTest, AProfilingTrialWithoutAProfileIsAFailure) {
  Search search(SimulatedSpec("binary"));
  search.Ask();
  search.Tell(0, {TrialState::kSucceeded, ""}, {}, std::nullopt);
  EXPECT_TRUE(search.Finished());
  EXPECT_THAT(search.FailureReason(), HasSubstr("without a model profile"));
}

TEST(SearchTest, SpecsThatContradictThemselvesAreRefused) {
  const std::vector<std::pair<std::string, std::function<void(ExperimentSpec&)>>> cases = {
      {"--max-trials", [](ExperimentSpec& s) { s.options.max_trials = 1; }},
      {"--max-slots", [](ExperimentSpec& s) { s.options.max_slots = 1; }},
      {"slots_per_trial", [](ExperimentSpec& s) { s.slots_per_trial = 0; }},
      {"bogus", [](ExperimentSpec& s) { s.method = "bogus"; }},
      {"beauty", [](ExperimentSpec& s) { s.options.metric = "beauty"; }},
      {"stage", [](ExperimentSpec& s) { s.ds_config["zero_optimization"]["stage"] = 7; }},
      {"train_batch_size", [](ExperimentSpec& s) { s.ds_config["train_batch_size"] = 9; }},
  };
  for (const auto& [expected, spoil] : cases) {
    ExperimentSpec spec = SimulatedSpec("binary");
    spoil(spec);
    EXPECT_THAT(RefusalOf([&] { Search search(spec); }), HasSubstr(expected));
  }
}

TEST(SearchTest, ALimitDoesNotHideWhyTheTrialsHaveFailed) {
  ExperimentSpec spec = SimulatedSpec("random");
  spec.options.max_time_s = 1;
  const auto ended = [&](TrialState state) {
    Search search(spec);
    const TrialId profile = search.Ask().value().id;
    search.EndSearch("--max-time: over");
    Outcome outcome{state, "no module named torch"};
    search.Tell(profile, outcome, {}, std::nullopt);
    EXPECT_TRUE(search.Finished());
    return search.FailureReason();
  };
  EXPECT_EQ(ended(TrialState::kFailed),
            "the profiling trial (trial 0) failed: no module named torch (--max-time: over)");
  EXPECT_EQ(ended(TrialState::kStopped), "--max-time: over");
}

TEST(SearchTest, ALimitThatEndsTheSearchBeforeTheSubmittedTrialLeavesAnAnswer) {
  Search search(SimulatedSpec("random"));
  const Trial profile = search.Ask().value();
  search.EndSearch("--max-time: over");
  Tell(search, profile.id, Success(profile, 1));
  const Trial submitted = search.Ask().value();
  EXPECT_EQ(submitted.kind, TrialKind::kSubmitted);
  Tell(search, submitted.id, Success(submitted, 1));
  while (const std::optional<Trial> more = search.Ask()) {
    EXPECT_NE(more->kind, TrialKind::kSearch);
    Tell(search, more->id, Success(*more, 1));
  }
  EXPECT_TRUE(search.Finished());
  EXPECT_EQ(search.FailureReason(), "");
  EXPECT_EQ(VerdictOf(search).pick, submitted.id);
}

TEST(SearchTest, WhatWasWithdrawnWhenTheSearchEndedRunsWithHigherLimits) {
  ExperimentSpec spec = SimulatedSpec("random");
  spec.options.max_time_s = 1;
  Search search(spec);
  const auto withdraw = [&](TrialId id) {
    search.EndSearch("--max-time: over");
    Tell(search, id, Failure(TrialState::kStopped));
    EXPECT_TRUE(search.Finished());
    search.RaiseLimits({{}, 10, {}});
  };
  const Trial profile = search.Ask().value();
  withdraw(profile.id);
  const Trial profile_again = search.Ask().value();
  EXPECT_EQ(profile_again.kind, TrialKind::kProfile);
  EXPECT_EQ(profile_again.ds_config, profile.ds_config);
  Tell(search, profile_again.id, Success(profile_again, 1));
  const Trial submitted = search.Ask().value();
  ASSERT_EQ(submitted.kind, TrialKind::kSubmitted);
  withdraw(submitted.id);
  const Trial submitted_again = search.Ask().value();
  EXPECT_EQ(submitted_again.kind, TrialKind::kSubmitted);
  EXPECT_EQ(search.Submitted(), submitted_again.id);
  Tell(search, submitted_again.id, Success(submitted_again, 1));
  EXPECT_EQ(search.Ask().value().kind, TrialKind::kSearch);
}

}  // namespace
}  // namespace dsat
