// Methods on spaces whose stages have several places: with and without activation checkpointing.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "methods/auto.h"
#include "methods/auto_space.h"
#include "methods/lineage.h"
#include "methods/methods.h"
#include "tests/methods/small_machine.h"

namespace dsat {
namespace {

constexpr char kInterval[] = "/pipeline/activation_checkpoint_interval";
constexpr char kPersistence[] = "/zero_optimization/stage3_param_persistence_threshold";

// Plain places hold 2 samples; those with checkpoints 16, and compute a third more.
StageSpace PlaceOf(int stage, int64_t interval) {
  StageSpace place{.stage = stage,
                   .settings = {{kInterval, interval}},
                   .approx_max_micro_batch = interval > 0 ? 16 : 2};
  const int64_t sample_bytes = (interval > 0 ? 5 : 40) * kGb / 10;
  for (const int64_t size : {1, 2, 4, 8, 16, 32}) {
    place.forecasts.push_back({.micro_batch_size = size,
                               .peak_bytes = 2 * kGb + size * sample_bytes,
                               .compute_ms = static_cast<double>(size) * (interval > 0 ? 40 : 30),
                               .update_ms = 10});
  }
  place.submitted = {{kInterval, 0}};
  return place;
}

SearchSpace Space() {
  SearchSpace space = SmallMachine().space;
  space.exact = true;
  space.stages = {PlaceOf(1, 0), PlaceOf(1, 1), PlaceOf(2, 0), PlaceOf(2, 1)};
  return space;
}

bool Checkpoints(const Assignment& assignment) {
  return assignment.at(kInterval) != 0;
}

// A micro-batch costs as much as `overhead` samples of 10 ms besides its own.
Trial EndOf(const Proposal& proposal, TrialId id, double overhead) {
  const bool checkpoints = Checkpoints(proposal.assignment);
  const int64_t size = MicroBatchOf(proposal.assignment);
  if (size > (checkpoints ? 16 : 2)) return EndedTrial(id, TrialState::kInfeasible);
  Trial trial = EndedTrial(id, TrialState::kSucceeded, 1);
  const auto samples = static_cast<double>(size);
  const double step_s = 0.01 * (samples * (checkpoints ? 1.33 : 1) + overhead) *
                        (1 + 0.05 * StageOf(proposal.assignment));
  trial.points[0].point = {.micro_batch_size = size};
  trial.points[0].measurement = {
      {"latency", {1e3 * step_s, step_s, 3}},
      {"throughput", {2 * samples / step_s, samples / step_s / 1e3, 3}},
      {"peak_bytes", {2e9 + (checkpoints ? 0.5e9 : 4e9) * samples, 0, 1}}};
  return trial;
}

struct AutoRun {
  std::vector<Proposal> proposals;
  Assignment pick;
};

AutoRun RunAuto(const SearchSpace& space, double overhead) {
  SearchOptions options = TestOptions();
  options.metric = "throughput";
  AutoMethod method(space, options);
  AutoRun run;
  while (run.proposals.size() < 60) {
    const std::optional<Proposal> proposal = method.Ask();
    if (!proposal) break;
    run.proposals.push_back(*proposal);
    method.Tell(proposal->tag, EndOf(*proposal, 1 + proposal->tag, overhead));
  }
  const Conclusion conclusion = method.Conclude();
  if (!conclusion.finalists.empty())
    run.pick = run.proposals.at(static_cast<size_t>(conclusion.finalists[0])).assignment;
  return run;
}

TEST(PlacesTest, AutoCheckpointsWhereLargerMicroBatchesPayForIt) {
  const AutoRun run = RunAuto(Space(), 10);
  ASSERT_FALSE(run.pick.empty());
  EXPECT_TRUE(Checkpoints(run.pick));
  EXPECT_EQ(StageOf(run.pick), 1);
  EXPECT_GE(MicroBatchOf(run.pick), 12);
  EXPECT_LE(run.proposals.size(), 30u);
}

TEST(PlacesTest, AutoDoesNotCheckpointWhereItIsSlower) {
  const AutoRun run = RunAuto(Space(), 0.2);
  ASSERT_FALSE(run.pick.empty());
  EXPECT_FALSE(Checkpoints(run.pick));
  EXPECT_EQ(StageOf(run.pick), 1);
}

TEST(PlacesTest, AutoProposesNothingThatIsExactlyPredictedNotToFit) {
  for (const double overhead : {0.2, 10.0}) {
    for (const Proposal& proposal : RunAuto(Space(), overhead).proposals) {
      EXPECT_LE(MicroBatchOf(proposal.assignment), Checkpoints(proposal.assignment) ? 16 : 2);
    }
  }
}

TEST(PlacesTest, ATrialIsOfThePlaceWhoseSettingsItHas) {
  const AutoSpace space(Space(), TestOptions());
  Trial trial;
  trial.ds_config = {{"zero_optimization", {{"stage", 2}}}};
  const auto plain = space.ConfigOf(trial, {});
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->place, 2u) << "a key that is not given is off";
  trial.ds_config["pipeline"]["activation_checkpoint_interval"] = 1;
  const auto checkpointed = space.ConfigOf(trial, {});
  ASSERT_TRUE(checkpointed);
  EXPECT_EQ(checkpointed->place, 3u);
  EXPECT_NE(checkpointed->settings, plain->settings);
  trial.ds_config["pipeline"]["activation_checkpoint_interval"] = 7;
  EXPECT_FALSE(space.ConfigOf(trial, {}));
}

TEST(PlacesTest, PredictedEffectsOfKnobsCountInMemoryAndTime) {
  SearchSpace space = Space();
  for (StageSpace& place : space.stages) {
    place.knobs = {
        {.pointer = kPersistence,
         .values = {0, 1000},
         .effects = {{.peak_bytes = 0, .log_time = 0}, {.peak_bytes = 5e9, .log_time = 0.5}}}};
  }
  const AutoSpace configs(space, TestOptions());
  const AutoConfig none = configs.ConfigOf(AutoCandidate{.place = 1, .knobs = 0, .size = 7});
  const AutoConfig large = configs.ConfigOf(AutoCandidate{.place = 1, .knobs = 1, .size = 7});
  const AutoMemory memory(space);
  EXPECT_NEAR(memory.Share(large) - memory.Share(none), 0.5, 1e-9);
  EXPECT_GT(memory.ProbabilityFits(none), 0.9);
  EXPECT_LT(memory.ProbabilityFits(large), 0.2);
  const AutoTimeModel model(space, "throughput");
  const auto log_of = [&](const AutoConfig& config) {
    return model.Log(config, 0.5, model.prior_mean(), AutoTimeModel::Part::kObjective, nullptr);
  };
  EXPECT_NEAR(log_of(large) - log_of(none), 0.5, 1e-9);
}

// Peaks without checkpoints say how large all activations are, and nothing of how many of them
// checkpointing saves.
TEST(PlacesTest, WhatCheckpointingDoesNotSaveIsLearnedFromItsMisfits) {
  SearchSpace space = Space();
  space.exact = false;
  AutoMemory memory(space);
  const auto config = [&](int64_t place, int64_t size) {
    AutoConfig made;
    made.place = place;
    made.stage = space.stages[place].stage;
    made.micro_batch = size;
    return made;
  };
  const auto fitted = [&] { memory.Fitted(config(0, 1), 6e9); };
  fitted();
  fitted();
  EXPECT_GT(memory.ProbabilityFits(config(1, 4)), 0.6);
  EXPECT_LT(memory.ProbabilityFits(config(1, 4)), 0.95);
  for (const int64_t size : {8, 6}) {
    memory.DidNotFit(config(1, size), "out of memory");
    fitted();
  }
  EXPECT_LT(memory.ProbabilityFits(config(3, 8)), 0.05) << "the other stage saves as little";
  EXPECT_LT(memory.ProbabilityFits(config(3, 6)), 0.2);
  EXPECT_GT(memory.ProbabilityFits(config(3, 2)), 0.6);
  EXPECT_GT(memory.ProbabilityFits(config(2, 1)), 0.95);
}

TEST(PlacesTest, ForecastsOfRecomputationAndOffloadAreInTheTimeModel) {
  SearchSpace space = Space();
  for (Forecast& forecast : space.stages[3].forecasts)
    forecast.update_ms += 300;
  const AutoSpace configs(space, TestOptions());
  const AutoTimeModel model(space, "throughput");
  const auto part_of = [&](int64_t place, AutoTimeModel::Part part) {
    const AutoConfig config = configs.ConfigOf(AutoCandidate{.place = place, .size = 0});
    return model.Log(config, 0.5, model.prior_mean(), part, nullptr);
  };
  using Part = AutoTimeModel::Part;
  EXPECT_GT(part_of(1, Part::kBackward), part_of(0, Part::kBackward));
  EXPECT_EQ(part_of(1, Part::kForward), part_of(0, Part::kForward));
  EXPECT_GT(part_of(3, Part::kUpdate), part_of(2, Part::kUpdate) + 1);
}

// The gradient is what Gauss-Newton steps follow.
TEST(PlacesTest, TheGradientOfAPlaceIsThatOfItsTime) {
  SearchSpace space = Space();
  for (Forecast& forecast : space.stages[1].forecasts)
    forecast.update_ms += 3.0 * static_cast<double>(forecast.micro_batch_size) + 20;
  const AutoSpace configs(space, TestOptions());
  const AutoTimeModel model(space, "throughput");
  const AutoConfig config = configs.ConfigOf(AutoCandidate{.place = 1, .size = 3});
  AutoTimeModel::Vector gradient, parameters = model.prior_mean();
  const auto log_of = [&](AutoTimeModel::Vector* out) {
    return model.Log(config, 0.95, parameters, AutoTimeModel::Part::kObjective, out);
  };
  log_of(&gradient);
  for (int i = 0; i < AutoTimeModel::kNum; ++i) {
    const double before = parameters[i], step = 1e-5;
    parameters[i] = before + step;
    const double above = log_of(nullptr);
    parameters[i] = before - step;
    EXPECT_NEAR((above - log_of(nullptr)) / (2 * step), gradient[i], 1e-5) << i;
    parameters[i] = before;
  }
}

TEST(PlacesTest, OtherMethodsDrawPlacesAndKeepTheirResultsApart) {
  for (const char* name : {"asha", "binary", "random", "grid"}) {
    SearchOptions options = TestOptions();
    options.metric = "throughput";
    const auto method = FindMethod(name).make(Space(), options);
    std::set<std::pair<int, bool>> places;
    int64_t largest = 0;
    for (TrialId id = 0; id < 60; ++id) {
      const std::optional<Proposal> proposal = method->Ask();
      if (!proposal) break;
      const bool checkpoints = Checkpoints(proposal->assignment);
      places.emplace(StageOf(proposal->assignment), checkpoints);
      // A size that is too large without checkpoints says nothing of places with them.
      if (checkpoints) largest = std::max(largest, MicroBatchOf(proposal->assignment));
      method->Tell(proposal->tag, EndOf(*proposal, id, 10));
    }
    EXPECT_EQ(places.size(), 4u) << name;
    EXPECT_GE(largest, 16) << name;
  }
}

}  // namespace
}  // namespace dsat
