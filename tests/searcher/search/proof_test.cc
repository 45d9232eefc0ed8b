// Tests the runs after the confirmation: their order, their outcomes, and that a replay agrees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "searcher/search/phases.h"
#include "searcher/search/verdict.h"
#include "tests/searcher/search/simulated_trials.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Two configurations are confirmed: the submitted one and the best other.
ExperimentSpec ProvedSpec() {
  ExperimentSpec spec = SearchSpec("binary", 6);
  spec.options.metric = "throughput";
  spec.options.max_concurrent_trials = 1;
  spec.options.confirm_rounds = 2;
  spec.options.check_losses = true;
  spec.options.soak_steps = 50;
  spec.options.train_batch_size = 16;
  return spec;
}

class ProofTest : public ::testing::Test {
 protected:
  Experiment Make(const ExperimentSpec& spec) { return Experiment::Create(store_, spec); }
  // The replayed experiment has the same trials and the same verdict.
  void ExpectReplay(const Experiment& experiment) {
    const Experiment replayed = Experiment::Open(store_, experiment.id());
    EXPECT_EQ(replayed.search().trials().size(), experiment.search().trials().size());
    EXPECT_EQ(ToJson(VerdictOf(replayed.search())), ToJson(VerdictOf(experiment.search())));
    EXPECT_EQ(replayed.search().Finished(), experiment.search().Finished());
  }
  void ExpectReferences(bool repeats);
  Store store_ = Store::InMemory();
};

TEST_F(ProofTest, TheLastLaunchOfThePickIsItsSoak) {
  Experiment experiment = Make(ProvedSpec());
  SimulatedMachine().Drive(experiment);
  const Search& search = experiment.search();
  const std::vector<Trial> soaks = TrialsOf(search, TrialKind::kSoak);
  ASSERT_EQ(soaks.size(), 1u);
  EXPECT_EQ(soaks[0].steps, 50);
  const Verdict verdict = VerdictOf(search);
  EXPECT_EQ(verdict.num_rounds, 2);
  const std::vector<Trial> confirms = TrialsOf(search, TrialKind::kConfirm);
  EXPECT_EQ(std::ranges::count(confirms, verdict.pick, &Trial::confirms), 1);
  EXPECT_EQ(std::ranges::count(confirms, search.Submitted(), &Trial::confirms), 2);
  EXPECT_FALSE(verdict.soak_speed);
  EXPECT_NE(verdict.pick, search.Submitted());
  EXPECT_EQ(soaks[0].confirms, verdict.pick);
  EXPECT_EQ(soaks[0].ds_config, search.BestConfigOf(*verdict.pick));
  EXPECT_EQ(verdict.soak, soaks[0].id);
  EXPECT_EQ(verdict.losses.result, LossCheck::Result::kAlike);
  EXPECT_EQ(verdict.losses.num_runs, 3);  // Its own trial and two rounds.
  EXPECT_THAT(TrialsOf(search, TrialKind::kReference), IsEmpty());
  ExpectReplay(experiment);
}

// A machine whose losses do not repeat to the bit.
struct NoisyLosses : SimulatedMachine {
  LossCurve Losses(const Trial& trial) const override {
    LossCurve curve = Curve(0.05);
    curve[3] *= 1 + 1e-3 * static_cast<double>(trial.id % 3);
    return curve;
  }
};

TEST_F(ProofTest, AnotherGlobalBatchHasOneReferenceIfLossesRepeatAndElseTwo) {
  for (const bool repeats : {true, false})
    ExpectReferences(repeats);
}

void ProofTest::ExpectReferences(bool repeats) {
  SCOPED_TRACE(repeats);
  ExperimentSpec spec = ProvedSpec();
  spec.options.train_batch_size.reset();
  Experiment experiment = Make(spec);
  repeats ? SimulatedMachine().Drive(experiment) : NoisyLosses().Drive(experiment);
  const Search& search = experiment.search();
  const Verdict verdict = VerdictOf(search);
  const int64_t batch = GlobalBatch(search.BestConfigOf(*verdict.pick));
  ASSERT_NE(batch, GlobalBatch(search.BestConfigOf(*search.Submitted())));
  const std::vector<Trial> references = TrialsOf(search, TrialKind::kReference);
  ASSERT_EQ(references.size(), repeats ? 1u : 2u);
  for (const Trial& reference : references) {
    EXPECT_EQ(reference.confirms, search.Submitted());
    EXPECT_EQ(GlobalBatch(reference.ds_config), batch);
    EXPECT_EQ(reference.ds_config.at("train_micro_batch_size_per_gpu"), 1);  // As submitted.
  }
  EXPECT_EQ(verdict.losses.result, LossCheck::Result::kAlike);
  EXPECT_EQ(verdict.losses.num_runs, repeats ? 1 : 2);
  ExpectReplay(experiment);
}

TEST_F(ProofTest, TheGlobalBatchIsSplitAsSubmittedWherePossible) {
  const Json submitted{{"train_batch_size", 24},
                       {"train_micro_batch_size_per_gpu", 4},
                       {"gradient_accumulation_steps", 3}};
  const auto split = [&](int64_t batch) {
    const Json config = WithGlobalBatch(submitted, batch).value_or(Json::object());
    return config.dump();
  };
  EXPECT_THAT(split(40), HasSubstr(R"("gradient_accumulation_steps":5)"));
  EXPECT_THAT(split(40), HasSubstr(R"("train_micro_batch_size_per_gpu":4)"));
  EXPECT_THAT(split(18), HasSubstr(R"("train_micro_batch_size_per_gpu":3)"));
  EXPECT_THAT(split(2), HasSubstr(R"("train_micro_batch_size_per_gpu":1)"));
  EXPECT_EQ(split(7), "{}");  // There are two ranks.
}

// Learns nothing in the first soak.
struct Broken : SimulatedMachine {
  LossCurve Losses(const Trial& trial) const override {
    return Curve(trial.kind == TrialKind::kSoak && num_soaks_++ == 0 ? 0 : 0.05);
  }
  mutable int num_soaks_ = 0;
};

TEST_F(ProofTest, WhatDoesNotTrainAlikeDropsOutAndTheNextTakesItsPlace) {
  Experiment experiment = Make(ProvedSpec());
  Broken().Drive(experiment);
  const Search& search = experiment.search();
  const std::vector<Trial> soaks = TrialsOf(search, TrialKind::kSoak);
  ASSERT_EQ(soaks.size(), 2u);
  EXPECT_EQ(soaks[0].state, TrialState::kInfeasible);
  EXPECT_THAT(soaks[0].reason, StartsWith("does not train like the submitted configuration"));
  EXPECT_EQ(store_.Trials(experiment.id())[soaks[0].id].state, TrialState::kInfeasible);
  EXPECT_EQ(soaks[1].state, TrialState::kSucceeded);
  const Verdict verdict = VerdictOf(search);
  EXPECT_EQ(verdict.pick, soaks[1].confirms);
  ASSERT_EQ(verdict.left_out.size(), 1u);
  EXPECT_EQ(verdict.left_out[0].first, *soaks[0].confirms);
  for (const Alternative& alternative : verdict.alternatives)
    EXPECT_NE(alternative.trial, *soaks[0].confirms);
  // Both curves are there to be seen.
  EXPECT_EQ(store_
                .Query(fmt::format("SELECT count(*) FROM step_losses WHERE trial IN ({}, {})",
                                   soaks[0].id, *search.Submitted()))
                .rows[0][0],
            16);
  ExpectReplay(experiment);
}

// A skipped update shifts the losses by a step.
TEST_F(ProofTest, OtherSkippedStepsOfFp16AreNoDefect) {
  struct : SimulatedMachine {
    LossCurve Losses(const Trial& trial) const override {
      LossCurve curve = Curve(0.05);
      if (trial.kind == TrialKind::kSoak) curve.insert(curve.begin(), curve[0]);
      return curve;
    }
    void Add(const Trial& trial, Measurement& measurement) const override {
      if (trial.kind == TrialKind::kSoak) measurement["skipped_steps"] = {1, 0, 1};
    }
  } shifted;
  for (const bool is_fp16 : {true, false}) {
    ExperimentSpec spec = ProvedSpec();
    if (is_fp16) spec.ds_config["fp16"] = {{"enabled", true}};
    Experiment experiment = Make(spec);
    shifted.Drive(experiment);
    const Trial soak = TrialsOf(experiment.search(), TrialKind::kSoak).at(0);
    EXPECT_EQ(soak.state, is_fp16 ? TrialState::kSucceeded : TrialState::kInfeasible);
  }
}

// Runs out of memory in a soak of all but the submitted configuration.
struct Small : SimulatedMachine {
  Outcome End(const Trial& trial) const override {
    const bool is_submitted = trial.ds_config.at("train_micro_batch_size_per_gpu") == 1;
    if (trial.kind != TrialKind::kSoak || is_submitted) return SimulatedMachine::End(trial);
    return {TrialState::kInfeasible, "out of device memory"};
  }
};

TEST_F(ProofTest, IfNoOtherFitsForLongTheSubmittedConfigurationIsThePick) {
  Experiment experiment = Make(ProvedSpec());
  Small().Drive(experiment);
  const Search& search = experiment.search();
  const Verdict verdict = VerdictOf(search);
  EXPECT_EQ(verdict.pick, search.Submitted());
  EXPECT_TRUE(verdict.nothing_better);
  EXPECT_EQ(verdict.left_out.size(), TrialsOf(search, TrialKind::kSoak).size() - 1);
  EXPECT_THAT(verdict.left_out[0].second, HasSubstr("out of device memory"));
  EXPECT_TRUE(search.FailureReason().empty());
  ExpectReplay(experiment);
}

// All but the submitted configuration are about as fast, and larger micro-batches need more memory.
// One size learns nothing.
struct Flat : SimulatedMachine {
  explicit Flat(int64_t defective = 0) : defective_(defective) {}
  static int64_t SizeOf(const Trial& trial) { return ConfigPoint(trial).micro_batch_size; }
  LossCurve Losses(const Trial& trial) const override {
    return Curve(SizeOf(trial) == defective_ ? 0 : 0.05);
  }
  void Add(const Trial& trial, Measurement& measurement) const override {
    const auto size = static_cast<double>(SizeOf(trial));
    measurement["throughput"] = {size == 1 ? 100 : 200 + size / 10, 0.5, 3};
    measurement["peak_bytes"] = {size * (1 << 20), 0, 3};
  }
  int64_t defective_;
};

TEST_F(ProofTest, TheSafestAlternativeTrainsAlikeOrIsNotOffered) {
  const auto safest_of = [](const Experiment& experiment) {
    const std::vector<Alternative> all = VerdictOf(experiment.search()).alternatives;
    const auto found = std::ranges::find(all, "safest", &Alternative::name);
    return found == all.end() ? Alternative() : *found;
  };
  ExperimentSpec spec = ProvedSpec();
  spec.method = "grid";  // It tries several sizes.
  spec.options.max_trials = 12;
  Experiment sound = Make(spec);
  Flat().Drive(sound);
  const Alternative smallest = safest_of(sound);
  ASSERT_EQ(smallest.name, "safest");
  EXPECT_EQ(smallest.losses.result, LossCheck::Result::kAlike);
  EXPECT_EQ(smallest.losses.changes, engine::KeyClass::kRounding);
  const int64_t size = Flat::SizeOf(sound.search().trials().at(smallest.trial));

  Experiment other = Make(spec);
  Flat(size).Drive(other);
  const Alternative safest = safest_of(other);
  ASSERT_EQ(safest.name, "safest");
  EXPECT_GT(Flat::SizeOf(other.search().trials().at(safest.trial)), size);
  EXPECT_EQ(safest.losses.result, LossCheck::Result::kAlike);
  EXPECT_EQ(ToJson(VerdictOf(other.search()))["alternatives_losses"]["safest"]["result"], "alike");
  ExpectReplay(other);
}

TEST_F(ProofTest, AnAlternativeWithAnotherGlobalBatchIsNotChecked) {
  ExperimentSpec spec = ProvedSpec();
  spec.options.train_batch_size.reset();
  Experiment experiment = Make(spec);
  Flat().Drive(experiment);
  const std::vector<Alternative> all = VerdictOf(experiment.search()).alternatives;
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].losses.result, LossCheck::Result::kNotChecked);
  EXPECT_THAT(all[0].losses.why, HasSubstr("the global batch changed"));
}

// The submitted configuration trains in fp32, and everything that is tried communicates in bf16.
TEST_F(ProofTest, TheClassOfWhatChangedIsNamed) {
  constexpr char kType[] = "/communication_data_type";
  const auto verdict_with = [&](const char* type) {
    ExperimentSpec spec = ProvedSpec();
    spec.search_space[kType] = {type};
    Experiment experiment = Make(spec);
    SimulatedMachine().Drive(experiment);
    const Verdict verdict = VerdictOf(experiment.search());
    EXPECT_NE(verdict.pick, experiment.search().Submitted());
    return verdict;
  };
  const LossCheck semantic = verdict_with("bf16").losses;
  EXPECT_EQ(semantic.changes, engine::KeyClass::kSemantic);
  EXPECT_THAT(semantic.semantic_keys, ElementsAre(kType));
  EXPECT_TRUE(semantic.only_learning);
  EXPECT_EQ(ToJson(semantic)["changes"], "semantic");

  ExperimentSpec spec = ProvedSpec();
  spec.search_space["/zero_optimization/zero_quantized_gradients"] = {false};
  spec.options.zero_stages = {3};
  Experiment experiment = Make(spec);
  SimulatedMachine().Drive(experiment);
  const LossCheck spelled = VerdictOf(experiment.search()).losses;
  EXPECT_EQ(spelled.changes, engine::KeyClass::kRounding) << "the default is written out";
  EXPECT_FALSE(spelled.only_learning);
}

TEST_F(ProofTest, WithoutLossesOnlyTheSoakSpeaks) {
  struct : SimulatedMachine {
    LossCurve Losses(const Trial&) const override { return {}; }
  } silent;
  ExperimentSpec spec = ProvedSpec();
  spec.options.train_batch_size.reset();
  Experiment experiment = Make(spec);
  silent.Drive(experiment);
  const Verdict verdict = VerdictOf(experiment.search());
  EXPECT_TRUE(verdict.soak);
  EXPECT_EQ(verdict.losses.why, kNoLosses);
  EXPECT_THAT(TrialsOf(experiment.search(), TrialKind::kReference), IsEmpty());
}

TEST_F(ProofTest, ASoakIsAsLongAsTheTimeThatIsLeft) {
  const auto soak_with = [&](std::optional<double> max_time_s) {
    ExperimentSpec spec = ProvedSpec();
    spec.options.max_time_s = max_time_s;
    Experiment experiment = Make(spec);
    SimulatedMachine().Drive(experiment);
    ExpectReplay(experiment);
    const Verdict verdict = VerdictOf(experiment.search());
    EXPECT_EQ(verdict.no_soak, verdict.soak ? "" : "no time was left for it");
    return verdict.soak ? std::optional(experiment.search().trials().at(*verdict.soak))
                        : std::nullopt;
  };
  // A launch takes 5 s, and one begins every 10 s.
  const Trial soak = soak_with(std::nullopt).value();
  const auto begin_s = static_cast<double>(10 * soak.id - 5);
  const double step_s = *ValueAtBest(soak, "throughput", "latency") / 1000;
  EXPECT_EQ(soak_with(begin_s + 5 + 20.5 * step_s).value().steps, 20);
  EXPECT_FALSE(soak_with(begin_s + 4));
}

TEST_F(ProofTest, ASoakThatIsSlowerThanTheOtherLaunchesIsNamed) {
  struct : SimulatedMachine {
    void Add(const Trial& trial, Measurement& measurement) const override {
      if (trial.kind == TrialKind::kSoak) measurement["throughput"].value *= 0.5;
    }
  } throttles;
  Experiment experiment = Make(ProvedSpec());
  throttles.Drive(experiment);
  const Verdict verdict = VerdictOf(experiment.search());
  ASSERT_TRUE(verdict.soak);
  EXPECT_NEAR(verdict.soak_speed.value(), 0.5, 1e-9);
}

TEST_F(ProofTest, ADefaultSoakTakesHalfOfTheTimeOfTheConfirmation) {
  ExperimentSpec spec = ProvedSpec();
  spec.options.soak_steps = 1'000'000;
  spec.options.soak_in_budget = true;
  Experiment experiment = Make(spec);
  SimulatedMachine().Drive(experiment);
  const Search& search = experiment.search();
  const std::vector<Trial> soaks = TrialsOf(search, TrialKind::kSoak);
  ASSERT_EQ(soaks.size(), 1u);
  // Every launch takes 5 s.
  const std::vector<Trial> confirms = TrialsOf(search, TrialKind::kConfirm);
  const double confirm_s = 5.0 * static_cast<double>(std::ranges::count_if(
                                     confirms, [&](const Trial& t) { return t.id < soaks[0].id; }));
  const double step_s =
      *ValueAtBest(search.trials().at(*soaks[0].confirms), "throughput", "latency") / 1000;
  EXPECT_EQ(soaks[0].steps, static_cast<int64_t>((confirm_s / 2 - 5) / step_s));
}

TEST_F(ProofTest, WithoutAConfirmationThereIsOnlyASoakThatIsAskedFor) {
  for (const bool in_budget : {true, false}) {
    ExperimentSpec spec = ProvedSpec();
    spec.options.confirm_rounds = 0;
    spec.options.soak_in_budget = in_budget;
    Experiment experiment = Make(spec);
    SimulatedMachine().Drive(experiment);
    EXPECT_EQ(TrialsOf(experiment.search(), TrialKind::kSoak).size(), in_budget ? 0u : 1u);
    EXPECT_EQ(VerdictOf(experiment.search()).losses.result, LossCheck::Result::kNotChecked);
    ExpectReplay(experiment);
  }
}

// As after kill -9 of the runner at any time.
TEST_F(ProofTest, AnInterruptedProofIsContinuedAndNothingRunsTwice) {
  ExperimentSpec spec = ProvedSpec();
  spec.options.train_batch_size.reset();
  Experiment whole = Make(spec);
  const SimulatedMachine machine;
  machine.Drive(whole);
  const ExperimentId id = Make(spec).id();
  for (int launches = 0; launches < 100; ++launches) {
    Experiment experiment = Experiment::Open(store_, id);
    const std::vector<TrialId> running = experiment.search().Running();
    if (!running.empty()) {
      machine.Run(experiment, running[0]);
    } else if (!experiment.Ask()) {
      break;
    }
  }
  const Experiment pieces = Experiment::Open(store_, id);
  EXPECT_TRUE(pieces.search().Finished());
  EXPECT_EQ(ToJson(VerdictOf(pieces.search())), ToJson(VerdictOf(whole.search())));
  EXPECT_EQ(pieces.search().trials().size(), whole.search().trials().size());
}

TEST_F(ProofTest, RaisedLimitsSoakANewPickAndNoOldOneAgain) {
  Experiment experiment = Make(ProvedSpec());
  const SimulatedMachine machine;
  machine.Drive(experiment);
  const TrialId first = *VerdictOf(experiment.search()).pick;
  experiment.RaiseLimits({.max_trials = 8, .max_time_s = {}, .max_device_hours = {}});
  machine.Drive(experiment);
  int64_t num_soaks = 0;
  for (const Trial& soak : TrialsOf(experiment.search(), TrialKind::kSoak))
    num_soaks += soak.confirms == first ? 1 : 0;
  EXPECT_EQ(num_soaks, 1);
  EXPECT_TRUE(VerdictOf(experiment.search()).soak);
  ExpectReplay(experiment);
}

TEST_F(ProofTest, AnInterruptedRunEndsBeforeTheNewTrialsOfRaisedLimitsBegin) {
  for (const TrialKind kind : {TrialKind::kConfirm, TrialKind::kSoak}) {
    ExperimentSpec spec = ProvedSpec();
    spec.options.max_concurrent_trials = 4;
    Experiment experiment = Make(spec);
    const SimulatedMachine machine;
    const std::optional<Trial> interrupted = machine.Drive(experiment, kind);
    ASSERT_TRUE(interrupted);
    experiment.RaiseLimits({.max_trials = 8, .max_time_s = {}, .max_device_hours = {}});
    EXPECT_FALSE(experiment.Ask());
    machine.Run(experiment, interrupted->id);
    const std::optional<Trial> next = experiment.Ask();
    ASSERT_TRUE(next);
    EXPECT_EQ(next->kind, TrialKind::kSearch);
    ExpectReplay(experiment);
  }
}

TEST_F(ProofTest, ASoakThatFailsOtherwiseIsNoEvidence) {
  struct : SimulatedMachine {
    Outcome End(const Trial& trial) const override {
      if (trial.kind == TrialKind::kSoak) return {TrialState::kFailed, "exit code 1"};
      return SimulatedMachine::End(trial);
    }
  } crashes;
  Experiment experiment = Make(ProvedSpec());
  crashes.Drive(experiment);
  const Search& search = experiment.search();
  const Verdict verdict = VerdictOf(search);
  EXPECT_EQ(TrialsOf(search, TrialKind::kSoak).size(), 1u);
  EXPECT_NE(verdict.pick, search.Submitted());
  EXPECT_THAT(verdict.left_out, IsEmpty());
  // The losses of the pick's earlier runs are compared.
  EXPECT_EQ(verdict.losses.result, LossCheck::Result::kAlike);
}

TEST_F(ProofTest, IfASoakFailsTheShorterRunsShowWhatTrainsOtherwise) {
  struct : SimulatedMachine {
    static bool IsSubmitted(const Trial& trial) {
      return trial.ds_config.at("train_micro_batch_size_per_gpu") == 1;
    }
    Outcome End(const Trial& trial) const override {
      if (trial.kind == TrialKind::kSoak && !IsSubmitted(trial))
        return {TrialState::kFailed, "exit code 1"};
      return SimulatedMachine::End(trial);
    }
    LossCurve Losses(const Trial& trial) const override {
      return Curve(IsSubmitted(trial) ? 0.05 : 0);
    }
  } learns_nothing;
  Experiment experiment = Make(ProvedSpec());
  learns_nothing.Drive(experiment);
  const Verdict verdict = VerdictOf(experiment.search());
  EXPECT_EQ(verdict.pick, experiment.search().Submitted());
  ASSERT_FALSE(verdict.left_out.empty());
  EXPECT_THAT(verdict.left_out[0].second, StartsWith("does not train like the submitted"));
  ExpectReplay(experiment);
}

}  // namespace
}  // namespace dsat
