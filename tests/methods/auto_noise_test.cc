// Tests of auto on machines that are noisy or rough, or hide a part of their memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "methods/auto.h"
#include "methods/auto_belief.h"
#include "methods/auto_memory.h"
#include "methods/auto_policy.h"
#include "methods/auto_regression.h"
#include "tests/methods/small_machine.h"

namespace dsat {
namespace {

constexpr char kOverlap[] = "/zero_optimization/overlap_comm";

AutoConfig ConfigOf(const AutoSpace& space, int64_t place, int64_t size) {
  AutoConfig config = space.ConfigOf(AutoCandidate{place, 0, 0});
  config.micro_batch = size;
  return config;
}

TEST(AutoNoiseTest, LaunchesMayVaryByAnyAmount) {
  const Machine machine = SmallMachine();
  const AutoSpace space(machine.space, {});
  for (const double sd : {0.002, 0.02, 0.2}) {
    AutoRegression regression{AutoTimeModel(machine.space, "throughput")};
    std::vector<AutoObservation> observations;
    Rng rng(1, 0, "launches");
    for (int i = 0; i < 24; ++i)
      observations.push_back(Observe(ConfigOf(space, i % 2, 8 + i % 3), sd * rng.Normal(), i));
    regression.Fit(observations);
    const double learned = std::sqrt(regression.NoiseVariance(ConfigOf(space, 0, 8)));
    EXPECT_GT(learned, 0.6 * sd);
    EXPECT_LT(learned, std::max(1.7 * sd, 0.006));
  }
}

// Speed grows with the processors' time that others leave, to the power of 1.3; launches of small
// sizes happened to have more of it.
TEST(AutoNoiseTest, WhatOtherProcessesCostIsNotTakenForThatOfAConfiguration) {
  const Machine machine = SmallMachine();
  const AutoSpace space(machine.space, {});
  AutoRegression regression{AutoTimeModel(machine.space, "throughput")};
  const auto law = [](int64_t size) {
    return std::log(0.002 * (1 + 1.0 / static_cast<double>(size)));
  };
  std::vector<AutoObservation> observations;
  const auto add = [&](int64_t size, double left) {
    const double slower = -1.3 * std::log(left);
    observations.push_back(
        Observe(ConfigOf(space, 0, size), law(size) + slower, std::ssize(observations)));
    observations.back().log_left = std::log(left);
  };
  for (const int64_t size : {16, 16, 12, 8, 20})
    add(size, 0.5);
  for (const auto& [size, left] : {std::pair(2, 0.8), {1, 0.75}, {1, 0.5}, {2, 0.55}})
    add(size, left);
  ASSERT_LT(observations[5].log_value, observations[0].log_value);
  regression.Fit(observations);
  const AutoRegression::View view =
      regression.Look({{ConfigOf(space, 0, 16)}, {ConfigOf(space, 0, 2)}}, {});
  EXPECT_NEAR(view.mean[1] - view.mean[0], law(2) - law(16), 0.1);
}

TEST(AutoNoiseTest, PlacesMayVaryUnequally) {
  const Machine machine = SmallMachine();
  const AutoSpace space(machine.space, {});
  AutoRegression regression{AutoTimeModel(machine.space, "throughput")};
  std::vector<AutoObservation> observations;
  Rng rng(1, 0, "launches");
  for (int i = 0; i < 32; ++i)
    observations.push_back(
        Observe(ConfigOf(space, i % 2, 8), (i % 2 == 0 ? 0.004 : 0.06) * rng.Normal(), i));
  regression.Fit(observations);
  EXPECT_GT(regression.NoiseVariance(ConfigOf(space, 1, 8)),
            4 * regression.NoiseVariance(ConfigOf(space, 0, 8)));
}

// A machine that becomes slower and faster again has not drifted by as much as a line through a few
// launches says.
TEST(AutoNoiseTest, TheErrorOfADriftHasTheWanderingOfTheMachine) {
  const Machine machine = SmallMachine();
  const AutoSpace space(machine.space, {});
  const auto drift = [&](const std::vector<double>& slower) {
    AutoRegression regression{AutoTimeModel(machine.space, "throughput")};
    std::vector<AutoObservation> observations;
    Rng rng(1, 0, "launches");
    for (size_t i = 0; i < 3 * slower.size(); ++i) {
      observations.push_back(Observe(ConfigOf(space, 0, 8), slower[i / 3] + 0.003 * rng.Normal(),
                                     static_cast<int64_t>(i)));
      observations.back().ended_s = 60.0 * static_cast<double>(1 + i);
    }
    regression.Fit(observations);
    return regression.Drift();
  };
  EXPECT_FALSE(drift({0, .03, .09, .14, .11, .16, .2, .15, .1, .06, .1, .14}));
  const auto steady = drift({0, .01, .02, .03, .04, .05, .06, .07, .08, .09, .1, .11});
  ASSERT_TRUE(steady);
  EXPECT_NEAR(steady->change, 0.12, 0.03);
}

TEST(AutoNoiseTest, StepsThatAreMeasuredAreNoStartUp) {
  const Machine machine = SmallMachine();
  AutoBelief belief(machine.space, machine.options);
  Assignment assignment = PlaceAssignment({.stage = 2});
  SetMicroBatch(assignment, 8);
  Trial trial = EndOf(machine, assignment, 1);
  Metric& latency = trial.points[0].measurement.at("latency");
  latency.samples = 200;  // Where steps vary, more than the least number are measured.
  const double steps_s = 203 * latency.value / 1e3;
  trial.times = {.started_s = 0, .ended_s = 5 + steps_s};
  const std::optional<AutoConfig> config = belief.space().ConfigOf(trial, ConfigPoint(trial));
  ASSERT_TRUE(config);
  const auto observed = belief.Learn(trial, config, 0);
  ASSERT_EQ(observed.size(), 1u);
  const auto seconds = [&](bool new_launch) {
    return belief.TrialSeconds(observed[0].log_value, *config, 1, new_launch);
  };
  EXPECT_NEAR(seconds(true) - seconds(false), 5, 0.1);
  EXPECT_NEAR(seconds(false), steps_s, 0.1 * steps_s);
}

TEST(AutoNoiseTest, PipelineStagesWaitForTheFirstAndTheLastMicroBatch) {
  Machine machine = SmallMachine();
  const AutoSpace space(machine.space, {});
  const AutoTimeModel flat(machine.space, "throughput");
  machine.space.workload.pipeline_stages = 4;
  const AutoTimeModel pipeline(machine.space, "throughput");
  for (const int64_t accumulation : {1, 2, 8, 32}) {
    AutoConfig config = ConfigOf(space, 0, 4);
    config.accumulation = accumulation;
    const auto log = [&](const AutoTimeModel& model) {
      return model.Log(config, 0, model.prior_mean(), AutoTimeModel::Part::kForward, nullptr);
    };
    const auto m = static_cast<double>(accumulation);
    EXPECT_NEAR(log(pipeline) - log(flat), std::log((m + 3) / m), 1e-9);
  }
}

// The device gives less than trials report to need.
TEST(AutoNoiseTest, AMisfitBelowTheLimitShowsWhatPeaksDoNotReport) {
  const Machine machine = SmallMachine();
  const AutoSpace space(machine.space, {});
  AutoMemory memory(machine.space);
  const auto peak = [](int64_t size) { return 2e9 + 0.33e9 * static_cast<double>(size); };
  for (const int64_t size : {4, 12, 19})
    memory.Fitted(ConfigOf(space, 2, size), peak(size));
  const double before = memory.ProbabilityFits(ConfigOf(space, 1, 22));
  EXPECT_TRUE(memory.DidNotFit(ConfigOf(space, 2, 22), "out of device memory"));
  // At another place, too.
  EXPECT_LT(memory.ProbabilityFits(ConfigOf(space, 1, 22)), 0.7 * before);
  EXPECT_GT(memory.ProbabilityFits(ConfigOf(space, 1, 18)), 0.9);
  EXPECT_TRUE(memory.IsDoubtful(ConfigOf(space, 1, 2), 0));
  EXPECT_FALSE(memory.IsDoubtful(ConfigOf(space, 1, 22), 0));
  EXPECT_TRUE(memory.IsDoubtful(ConfigOf(space, 1, 22), 4e9));
}

TEST(AutoNoiseTest, AnOutOfMemoryFarBelowTheLimitIsRepeatedOnce) {
  for (const bool by_chance : {true, false}) {
    Machine machine = SmallMachine();
    machine.misfit = "out of device memory";
    // The smallest sizes are the fastest.
    machine.step_s = [](int, double size, double) { return 0.01 * size * size; };
    AutoMethod method(machine.space, machine.options);
    std::vector<Assignment> repeated;
    Assignment hit;
    for (int id = 1; id < 40; ++id) {
      const std::optional<Proposal> proposal = method.Ask();
      if (!proposal) break;
      Trial trial = EndOf(machine, proposal->assignment, id);
      if (hit.empty() && id > 4 && MicroBatchOf(proposal->assignment) < 8 && !proposal->repeat) {
        hit = proposal->assignment;
        trial = EndedTrial(id, TrialState::kInfeasible);
        trial.reason = machine.misfit;
      } else if (proposal->assignment == hit) {
        repeated.push_back(hit);
        if (!by_chance) {
          trial = EndedTrial(id, TrialState::kInfeasible);
          trial.reason = machine.misfit;
        }
      }
      method.Tell(proposal->tag, trial);
    }
    ASSERT_FALSE(hit.empty());
    ASSERT_FALSE(repeated.empty());
    EXPECT_TRUE(by_chance || repeated.size() == 1u);
  }
}

// The model's opinion must not hide what lies next to the best measurements.
TEST(AutoNoiseTest, NeighborsOfTheBestMeasurementsAreConsidered) {
  Machine machine = SmallMachine();
  for (StageSpace& stage : machine.space.stages) {
    for (const char* pointer : {"/a", "/b", "/c"}) {
      stage.knobs.push_back({pointer, {0, 1, 2, 3, 4}});
      stage.submitted[pointer] = 0;
    }
  }
  const AutoBelief belief(machine.space, machine.options);
  const AutoSpace& space = belief.space();
  const AutoCandidate best{3, 77, 0};
  AutoRecord record;
  record.successes = 1;
  record.measured.push_back({.config = space.ConfigOf(best), .candidate = best});
  const std::vector<AutoCandidate> screened = AutoPolicy::Screen(belief, record);
  const std::set<AutoCandidate> chosen(screened.begin(), screened.end());
  int64_t neighbors = 0;
  const std::vector<AutoKnobs>& knobs = space.knobs(best.place);
  for (int64_t i = 0; i < std::ssize(knobs); ++i) {
    if (knobs[i].NumDifferences(knobs[best.knobs]) != 1) continue;
    ++neighbors;
    EXPECT_TRUE(chosen.contains({best.place, i, best.size})) << i;
  }
  EXPECT_EQ(neighbors, 3 * 4 + 1);
  EXPECT_TRUE(chosen.contains({best.place, best.knobs, 1}));
  for (int64_t place = 0; place < 4; ++place)
    EXPECT_TRUE(std::ranges::any_of(chosen, [&](const auto& c) { return c.place == place; }));
}

// A value of the user's own may be fast at one stage only, and overlap may help at one only.
TEST(AutoNoiseTest, PromisingStagesAreMeasuredWithEachSwitchAndValue) {
  Machine machine = SmallMachine();
  for (StageSpace& stage : machine.space.stages) {
    stage.knobs.push_back({kOverlap, {false, true}});
    stage.knobs.push_back({"/arguments/--kernels", {"eager", "fused"}});
    stage.submitted = {{kOverlap, false}, {"/arguments/--kernels", "eager"}};
  }
  machine.step_s = [](int, double size, double) { return 0.01 * (size + 4); };
  machine.factor = [](const Assignment& assignment) {
    const bool is_fast = StageOf(assignment) == 2 && assignment.at(kOverlap) == true &&
                         assignment.at("/arguments/--kernels") == "fused";
    return is_fast ? 0.9 : 1;
  };
  auto [method, run] = AutoSearch(machine);
  std::set<std::pair<int, bool>> overlaps;
  std::set<std::pair<int, std::string>> kernels;
  std::set<int> stages;
  for (const Proposal& proposal : run.proposals) {
    const Assignment& assignment = proposal.assignment;
    const int stage = StageOf(assignment);
    stages.insert(stage);
    overlaps.emplace(stage, assignment.at(kOverlap).get<bool>());
    kernels.emplace(stage, assignment.at("/arguments/--kernels").get<std::string>());
  }
  EXPECT_GE(overlaps.size(), 2 * stages.size() - 1);
  EXPECT_GE(kernels.size(), 2 * stages.size() - 1);
  const auto picked = static_cast<size_t>(method.Conclude().finalists.at(0));
  EXPECT_LT(SampleSeconds(machine, run.proposals[picked].assignment), 0.01 * 28 / 24 * 0.91);
}

}  // namespace
}  // namespace dsat
