// Tests the end of a search: what is confirmed, what is picked, and that a replay agrees.
#include "searcher/search/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "searcher/search/config_change.h"
#include "tests/searcher/search/simulated_device.h"
#include "tests/searcher/search/simulated_trials.h"

namespace dsat {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(VerdictTest, TheFactorComesFromTheConfirmationAlone) {
  Search search(ConfirmedSpec());
  // In the search trial 5 seems to be 1.7 times as fast; in truth it is 1.5 times as fast.
  RunToEnd(search, Device([](const Trial& t) { return t.id == 5 ? 170.0 : 100.0; },
                          [](const Trial& t) {
                            const double noise = 1 + 0.001 * static_cast<double>(t.id % 3);
                            return (*t.confirms == 5 ? 150 : 100) * noise;
                          }));
  const Verdict verdict = VerdictOf(search);
  EXPECT_EQ(verdict.pick, 5);
  ASSERT_TRUE(verdict.factor);
  EXPECT_NEAR(verdict.factor->value, 1.5, 0.01);
  EXPECT_TRUE(verdict.factor->is_gain());
  EXPECT_EQ(verdict.certainty, Certainty::kProven);
  EXPECT_EQ(verdict.num_rounds, 2);  // The first look has decided.
  EXPECT_NEAR(*verdict.speed, 150, 1);
}

TEST(VerdictTest, WhatAStepSavesIsWhatTheConfirmationHasProven) {
  Search search(ConfirmedSpec());
  const EndTrial end_of = [](const Trial& trial) {
    return Success(trial, trial.confirms == 5 ? 150.0 : trial.id == 5 ? 170.0 : 100.0);
  };
  while (const std::optional<Trial> trial = search.Ask()) {
    const Ending end = end_of(*trial);
    search.Tell(trial->id, end.outcome, end.points, end.profile, std::nullopt, {1, 3});
  }
  const Verdict verdict = VerdictOf(search);
  ASSERT_EQ(verdict.pick, 5);
  ASSERT_TRUE(verdict.repaid_after_steps);
  // In each step of the submitted batch, at 150 samples/s.
  const auto batch = static_cast<double>(GlobalBatch(search.BestConfigOf(*search.Submitted())));
  const double saved_s =
      batch / 150 * (verdict.factor->low - 1) * static_cast<double>(search.spec().slots_per_trial);
  EXPECT_NEAR(static_cast<double>(*verdict.repaid_after_steps), verdict.device_seconds / saved_s,
              1);
}

TEST(VerdictTest, TheBoundOfOthersIsThatOfThePick) {
  ExperimentSpec spec = ConfirmedSpec();
  spec.method = "auto";
  Search search(spec);
  // The search's favorite turns out to be slow, on a machine whose launches vary.
  std::optional<TrialId> favorite;
  RunToEnd(search, Device(
                       [](const Trial& t) {
                         return t.kind == TrialKind::kSubmitted
                                    ? 50.0
                                    : 100.0 + static_cast<double>(t.id % 3);
                       },
                       [&](const Trial& t) {
                         if (!favorite) favorite = search.Find().finalists.at(0);
                         if (t.confirms == search.Submitted()) return 50.0;
                         return t.confirms == favorite ? 90.0 : 101.0;
                       }));
  const Verdict verdict = VerdictOf(search);
  ASSERT_TRUE(verdict.pick && favorite);
  ASSERT_NE(verdict.pick, favorite);
  const SearchState& state = search;
  const auto of_favorite = state.proposer->method().BoundOthers(search.trials().at(*favorite));
  EXPECT_LT(verdict.others.value().at_most, of_favorite.value().at_most);
}

// A search by `auto`, and what it likes best: the first row of speeds, the second is as submitted.
std::pair<Search, TrialId> ByAuto(const std::array<std::array<double, 3>, 3>& speeds) {
  ExperimentSpec spec = ConfirmedSpec();
  spec.method = "auto";
  spec.options.max_trials = 5;
  Search search(spec);
  std::optional<TrialId> favorite;
  std::map<TrialId, size_t> rounds;
  const auto confirmed = [&](const Trial& t) {
    if (!favorite) favorite = search.Find().finalists.at(0);
    const size_t row = t.confirms == favorite ? 0 : t.confirms == search.Submitted() ? 1 : 2;
    return speeds[row][rounds[*t.confirms]++ % 3];
  };
  RunToEnd(search, Device([](const Trial& t) { return 100.0 + 50 * double(t.id); }, confirmed));
  return {std::move(search), *favorite};
}

TEST(VerdictTest, WhereTheRoundsCannotTellTheMethodDecides) {
  const auto [search, favorite] = ByAuto({{{120, 121, 122}, {50, 50, 50}, {120, 121, 122}}});
  const SearchState& state = search;
  const std::map<TrialId, double> speeds = state.Find().speeds;
  const TrialId pick = *VerdictOf(search).pick;
  ASSERT_NE(pick, search.Submitted());
  for (const TrialId arm : search.confirmation()->Arms())
    EXPECT_TRUE(arm == search.Submitted() || speeds.at(pick) >= 0.99 * speeds.at(arm)) << arm;
}

TEST(VerdictTest, IfNothingIsBetterTheFactorIsThatOfTheBestOtherConfiguration) {
  const auto [search, favorite] = ByAuto({{{90, 100, 111}, {100, 100, 100}, {92, 102, 113}}});
  const Verdict verdict = VerdictOf(search);
  ASSERT_TRUE(verdict.nothing_better);
  const TrialId best = *search.confirmation()->BestOther();
  EXPECT_EQ(verdict.factor->value, search.confirmation()->Compare(best, *search.Submitted()).value);
}

TEST(VerdictTest, IfNothingIsBetterTheSubmittedConfigurationIsThePick) {
  Search search(ConfirmedSpec());
  RunToEnd(search,
           Device([](const Trial& t) { return t.id == 5 ? 150.0 : 100.0; },
                  [](const Trial& t) { return 100.0 + static_cast<double>(t.id * 7 % 5); }));
  const Verdict verdict = VerdictOf(search);
  EXPECT_EQ(verdict.pick, search.Submitted());
  EXPECT_TRUE(verdict.nothing_better);
  EXPECT_THAT(verdict.ties, Contains(5));
  EXPECT_EQ(search.BestConfigOf(*verdict.pick), search.trials().at(*search.Submitted()).ds_config);
}

TEST(VerdictTest, ASubmittedConfigurationThatIsProbablySlowerIsNoTie) {
  const auto [search, favorite] = ByAuto({{{135, 123, 149}, {100, 110, 91}, {135, 123, 149}}});
  const Verdict verdict = VerdictOf(search);
  ASSERT_EQ(verdict.certainty, Certainty::kProbable);
  ASSERT_LT(verdict.factor->low, 1);
  EXPECT_THAT(verdict.ties, Not(Contains(search.Submitted())));
}

// The arms besides the submitted one, with the number of keys that each of them changes.
std::map<TrialId, size_t> NumChanges(const Search& search) {
  std::map<TrialId, size_t> changes;
  const Json submitted = search.BestConfigOf(*search.Submitted());
  for (const TrialId arm : search.confirmation()->Arms())
    if (arm != search.Submitted())
      changes[arm] = ChangesOf(submitted, search.BestConfigOf(arm)).size();
  return changes;
}

TEST(VerdictTest, OfConfigurationsThatAreAsFastTheOneThatChangesLeastIsThePick) {
  TrialId most = -1;  // The arm that changes most.
  const auto run = [&](double factor, double noise) {
    ExperimentSpec spec = ConfirmedSpec();
    spec.options.train_batch_size = 96;
    Search search(spec);
    RunToEnd(search, Device([](const Trial& t) { return t.id < 3 ? 100.0 : 150.0; },
                            [&](const Trial& t) {
                              if (t.confirms == search.Submitted()) return 100.0;
                              const double draw = noise * static_cast<double>(t.id * 7 % 5);
                              return (t.confirms == most ? factor : 1) * (150 + draw);
                            }));
    return search;
  };
  const std::map<TrialId, size_t> changes = NumChanges(run(1, 1));
  ASSERT_GT(changes.size(), 1u);
  const auto by_changes = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [least_changed, most_changed] = std::ranges::minmax_element(changes, by_changes);
  ASSERT_LT(least_changed->second, most_changed->second);
  most = most_changed->first;

  const Search alike = run(1.006, 0.5);
  const Verdict verdict = VerdictOf(alike);
  EXPECT_GT(alike.confirmation()->Compare(most, verdict.pick.value()).value, 1);
  EXPECT_EQ(changes.at(verdict.pick.value()), least_changed->second);
  EXPECT_THAT(verdict.ties, Contains(most));
  EXPECT_EQ(verdict.factor->value,
            alike.confirmation()->Compare(*verdict.pick, *alike.Submitted()).value);
  ASSERT_FALSE(verdict.alternatives.empty());
  EXPECT_EQ(verdict.alternatives[0].name, "fastest");
  EXPECT_EQ(verdict.alternatives[0].trial, most);

  EXPECT_EQ(VerdictOf(run(1.1, 0.1)).pick, most);  // It is certainly faster.
  EXPECT_EQ(VerdictOf(run(1.04, 3)).pick, most);   // Nothing else is as fast in the mean.
}

TEST(VerdictTest, AnotherConfigurationIsConfirmedAlsoIfTheSubmittedOneWasFarAhead) {
  Search search(ConfirmedSpec(2));
  RunToEnd(search,
           Device([&](const Trial& t) { return t.kind == TrialKind::kSubmitted ? 900.0 : 100.0; },
                  [](const Trial& t) { return 100.0 + static_cast<double>(t.id % 2); }));
  EXPECT_EQ(NumOf(search, TrialKind::kConfirm), 2 * 2);
  EXPECT_TRUE(VerdictOf(search).factor);
}

TEST(VerdictTest, ConfirmTrialsComeAfterTheSearchOneAtATimeAndAreNotCounted) {
  ExperimentSpec spec = ConfirmedSpec(2);
  spec.options.max_concurrent_trials = 8;
  Search search(spec);
  RunToEnd(search, Device([](const Trial& t) { return 100.0 + static_cast<double>(t.id); },
                          [&](const Trial&) {
                            EXPECT_EQ(search.Running().size(), 1u);
                            return 100.0;
                          }));
  EXPECT_EQ(NumOf(search, TrialKind::kConfirm), 2 * 4);  // Three finalists and the submitted one.
  EXPECT_EQ(static_cast<int64_t>(search.trials().size()), spec.options.max_trials + 8);
  EXPECT_NE(search.trials().at(*search.Best()).kind, TrialKind::kConfirm);
}

TEST(VerdictTest, AnEndedSearchConfirmsWhatItHas) {
  Search search(ConfirmedSpec());
  const EndTrial end = Device([](const Trial& t) { return 100.0 + static_cast<double>(t.id); },
                              [](const Trial& t) { return 100.0 + static_cast<double>(t.id % 2); });
  for (int i = 0; i < 5; ++i) {
    const Trial trial = *search.Ask();
    Tell(search, trial.id, end(trial));
  }
  search.EndSearch("--max-time: over");
  RunToEnd(search, end);
  EXPECT_EQ(NumOf(search, TrialKind::kSearch), 3);
  EXPECT_GE(VerdictOf(search).num_rounds, kFirstLook);
}

TEST(VerdictTest, RaisedLimitsContinueTheSearchAndConfirmAnew) {
  Search search(ConfirmedSpec(2));
  const EndTrial end = Device([](const Trial& t) { return 100.0 + static_cast<double>(t.id); },
                              [](const Trial& t) { return 100.0 + static_cast<double>(t.id % 2); });
  RunToEnd(search, end);
  const int64_t before = NumOf(search, TrialKind::kConfirm);
  search.RaiseLimits({.max_trials = 12, .max_time_s = {}, .max_device_hours = {}});
  EXPECT_FALSE(search.Finished());
  RunToEnd(search, end);
  EXPECT_EQ(NumOf(search, TrialKind::kSearch), 10);
  EXPECT_EQ(NumOf(search, TrialKind::kConfirm), 2 * before);
}

TEST(VerdictTest, LimitsThatAllowNoFurtherTrialLeaveTheConfirmationAsItIs) {
  Store store = Store::InMemory();
  ExperimentSpec spec = SearchSpec("binary", 9);
  for (const int64_t rounds : {2, 6}) {
    spec.options.confirm_rounds = rounds;
    Experiment experiment = Experiment::Create(store, spec);
    RunToEnd(experiment, 3);
    const Json before = ToJson(VerdictOf(experiment.search()));
    const size_t count = experiment.search().trials().size();
    for (const int64_t most : {9, 4}) {  // More trials than these have run.
      experiment.RaiseLimits({.max_trials = most, .max_time_s = {}, .max_device_hours = {}});
      RunToEnd(experiment, 3);
      EXPECT_EQ(experiment.search().trials().size(), count) << rounds;
      EXPECT_EQ(ToJson(VerdictOf(Experiment::Open(store, experiment.id()).search())), before);
    }
  }
}

TEST(VerdictTest, LimitsMayBeRaisedWhileATrialConfirms) {
  Store store = Store::InMemory();
  ExperimentSpec spec = SearchSpec("binary", 9);
  spec.options.confirm_rounds = 2;
  Experiment experiment = Experiment::Create(store, spec);
  std::optional<Trial> trial = experiment.Ask();
  while (trial->kind != TrialKind::kConfirm) {
    RunTrial(experiment, trial->id);
    trial = experiment.Ask();
  }
  experiment.RaiseLimits({.max_trials = 11, .max_time_s = {}, .max_device_hours = {}});
  EXPECT_FALSE(experiment.Ask());
  RunTrial(experiment, trial->id);
  trial = experiment.Ask();
  EXPECT_EQ(trial.value().kind, TrialKind::kSearch);
  RunTrial(experiment, trial->id);
  RunToEnd(experiment, 3);
  experiment.SetState(ExperimentState::kCompleted, "");
  const Experiment replayed = Experiment::Open(store, experiment.id());
  EXPECT_EQ(ToJson(VerdictOf(replayed.search())), ToJson(VerdictOf(experiment.search())));
  EXPECT_EQ(VerdictOf(replayed.search()).num_rounds, 2);
  EXPECT_EQ(store.Query("SELECT pick FROM experiments").rows.at(0).at(0),
            *VerdictOf(experiment.search()).pick);
}

TEST(VerdictTest, WithoutConfirmationNothingSlowerIsPicked) {
  Search search(ConfirmedSpec(0));
  RunToEnd(search,
           Device([](const Trial& t) { return t.kind == TrialKind::kSubmitted ? 150.0 : 100.0; },
                  [](const Trial&) { return 0.0; }));
  const Verdict verdict = VerdictOf(search);
  EXPECT_EQ(verdict.pick, search.Submitted());
  EXPECT_TRUE(verdict.nothing_better);
  EXPECT_FALSE(verdict.factor);
}

TEST(VerdictTest, WhatDropsOutOfTheConfirmationIsNamed) {
  Search search(ConfirmedSpec(2));
  TrialId dropped = -1;
  RunToEnd(search, [&](const Trial& trial) {
    if (trial.kind == TrialKind::kProfile) return Success(trial, 1);
    const bool drops = trial.confirms && *trial.confirms != search.Submitted();
    if (drops && (dropped < 0 || dropped == *trial.confirms)) {
      dropped = *trial.confirms;
      return Failure(TrialState::kInfeasible);
    }
    return Success(trial, 100.0 + static_cast<double>(trial.id));
  });
  const Verdict verdict = VerdictOf(search);
  ASSERT_EQ(verdict.left_out.size(), 1u);
  EXPECT_EQ(verdict.left_out[0].first, dropped);
  EXPECT_THAT(ToJson(verdict)["left_out"][std::to_string(dropped)].dump(), HasSubstr("infeasible"));
}

// The search has looked ahead to a trial that then does not come.
TEST(VerdictTest, ALookAheadThatIsDroppedLeavesNoTrace) {
  for (const char* method : {"binary", "asha", "random", "auto"}) {
    ExperimentSpec spec = ConfirmedSpec(2);
    spec.method = method;
    const EndTrial end = NoisyDevice(1.01);
    const auto run = [&](bool look_ahead) {
      Search search(spec);
      const auto look = [&] {
        if (look_ahead) search.Settle();
        EXPECT_FALSE(search.Finished());
      };
      for (int i = 0; i < 5; ++i) {
        look();
        const Trial trial = *search.Ask();
        Tell(search, trial.id, end(trial));
      }
      look();
      search.EndSearch("--max-time: over");
      look();
      search.RaiseLimits({.max_trials = 12, .max_time_s = {}, .max_device_hours = {}});
      RunToEnd(search, end);
      Json configs;
      for (const auto& [id, trial] : search.trials())
        configs.push_back(trial.ds_config);
      return configs;
    };
    EXPECT_EQ(run(true), run(false)) << method;
  }
}

TEST(VerdictTest, AProfileThatDoesNotFitIsTakenWithLessMemory) {
  Search search(ConfirmedSpec());
  RunToEnd(search, [](const Trial& trial) {
    const int64_t stage = IntAt(trial.ds_config, "/zero_optimization/stage", 0);
    if (stage < 3) return Failure(TrialState::kInfeasible);
    return Success(trial, 100.0 + static_cast<double>(trial.id));
  });
  EXPECT_EQ(search.trials().at(0).state, TrialState::kInfeasible);
  EXPECT_EQ(search.trials().at(1).kind, TrialKind::kProfile);
  EXPECT_EQ(IntAt(search.trials().at(1).ds_config, "/zero_optimization/stage", 0), 3);
  EXPECT_TRUE(search.profile());
  EXPECT_THAT(search.SubmittedMisfit(), HasSubstr("infeasible"));
  EXPECT_FALSE(search.Submitted());
  const Verdict verdict = VerdictOf(search);
  EXPECT_TRUE(verdict.pick);
  EXPECT_FALSE(verdict.factor);
}

TEST(VerdictTest, AFixedGlobalBatchStays) {
  ExperimentSpec spec = ConfirmedSpec(2);
  spec.options.train_batch_size = 96;  // There are two ranks.
  Search search(spec);
  RunToEnd(search, [](const Trial& trial) {
    if (trial.kind != TrialKind::kProfile) {
      EXPECT_EQ(trial.ds_config.at("train_batch_size"), 96) << trial.ds_config.dump();
    }
    return OnDevice(trial, false);
  });
  EXPECT_GT(NumOf(search, TrialKind::kSearch), 2);
}

TEST(VerdictTest, TwoConfigurationsCanBeComparedWithoutASearch) {
  Store store = Store::InMemory();
  ExperimentSpec spec = SearchSpec("check");
  spec.options.confirm_rounds = 3;
  spec.candidate = spec.ds_config;
  SetAtPointer(spec.candidate, "/train_micro_batch_size_per_gpu", 8);
  Experiment experiment = Experiment::Create(store, spec);
  RunToEnd(experiment, 1);
  const Search& search = experiment.search();
  EXPECT_EQ(search.trials().size(), 2u + 6u);
  EXPECT_EQ(search.trials().at(0).kind, TrialKind::kSubmitted);
  EXPECT_EQ(IntAt(search.trials().at(1).ds_config, "/train_micro_batch_size_per_gpu", 0), 8);
  EXPECT_GT(search.confirmation()->Compare(1, 0).value, 1);
  EXPECT_TRUE(Experiment::Open(store, experiment.id()).search().Finished());
}

}  // namespace
}  // namespace dsat
