// The method auto on small machines whose best configuration is known.
#include "methods/auto.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tests/methods/small_machine.h"

namespace dsat {
namespace {

TEST(AutoTest, FindsTheBestAndStopsByItself) {
  for (const size_t concurrency : {1, 4, 16}) {
    const Machine machine = SmallMachine();
    auto [method, run] = AutoSearch(machine, concurrency);
    EXPECT_LT(run.proposals.size(), 70u) << concurrency;
    EXPECT_LE(run.misfits, 2) << concurrency;
    EXPECT_LT(LossOf(machine, method, run), 0.02) << concurrency;
    EXPECT_FALSE(method.Ask());
    const Conclusion conclusion = method.Conclude();
    EXPECT_LE(conclusion.finalists.size(), 3u);
    const auto others = [&](int64_t tag) {
      const auto trial = std::ranges::find(run.trials, 1 + tag, &Trial::id);
      return method.BoundOthers(*trial).value();
    };
    ASSERT_GE(conclusion.finalists.size(), 1u);
    const OthersBound bound = others(conclusion.finalists[0]);
    EXPECT_GE(bound.at_most, 1 + LossOf(machine, method, run));
    EXPECT_LT(bound.at_most, 1.04);
    EXPECT_GT(others(0).at_most, bound.at_most);
    EXPECT_GT(bound.num_compared, 20);
    EXPECT_LE(bound.num_compared, method.space().num_candidates());
    const auto pick = std::ranges::find(run.trials, 1 + conclusion.finalists[0], &Trial::id);
    EXPECT_NE(method.BoundOf(*pick).find("bound by"), std::string::npos) << method.BoundOf(*pick);
    EXPECT_EQ(method.BoundOf(EndedTrial(999, TrialState::kSucceeded)), "");
  }
}

TEST(AutoTest, AThirdFinalistMustBeWorthItsLaunches) {
  const auto num_finalists = [](int64_t run_steps) {
    Machine machine = SmallMachine();
    machine.noise = 0.02;
    machine.options.confirm_rounds = 3;
    machine.options.auto_method.run_steps = run_steps;
    return AutoSearch(machine).method.Conclude().finalists.size();
  };
  EXPECT_EQ(num_finalists(1000), 2u);
  EXPECT_EQ(num_finalists(int64_t{1} << 50), 3u);
}

TEST(AutoTest, TheFirstProposalIsPredictedToBeTheBestThatFits) {
  const Machine machine = SmallMachine();
  AutoMethod method(machine.space, machine.options);
  const std::optional<Proposal> first = method.Ask();
  ASSERT_TRUE(first);
  EXPECT_GE(MicroBatchOf(first->assignment), 8);
  EXPECT_LE(MicroBatchOf(first->assignment), 24);
}

TEST(AutoTest, FindsAnOptimumBelowTheLargestSize) {
  Machine machine = SmallMachine({1});
  machine.step_s = [](int, double size, double) { return 0.01 * size * (1 + 0.02 * size) + 0.02; };
  auto [method, run] = AutoSearch(machine);
  EXPECT_LT(LossOf(machine, method, run), 0.02);
}

// The effect of a flag of the user's own is unknown, and may be large.
TEST(AutoTest, ValuesOfTheUsersOwnSpaceAreExploredAndTheirEffectsAddUp) {
  Machine machine = SmallMachine();
  for (StageSpace& stage : machine.space.stages) {
    stage.knobs.push_back({"/arguments/--fast", {1, 2, 3}});
    stage.knobs.push_back({"/environment/WORKERS", {1, 2}});
    stage.submitted = {{"/arguments/--fast", 1}, {"/environment/WORKERS", 1}};
  }
  machine.factor = [](const Assignment& assignment) {
    return (assignment.at("/arguments/--fast") == 2 ? 0.5 : 1) /
           assignment.at("/environment/WORKERS").get<double>();
  };
  auto [method, run] = AutoSearch(machine, 1, 12);
  const auto picked = static_cast<size_t>(method.Conclude().finalists.at(0));
  const Assignment& pick = run.proposals[picked].assignment;
  EXPECT_EQ(pick.at("/arguments/--fast"), 2);
  EXPECT_EQ(pick.at("/environment/WORKERS"), 2);
  EXPECT_LT(picked, 8u);
}

TEST(AutoTest, WithoutForecastsItLearnsWhatFits) {
  Machine machine = SmallMachine();
  machine.space.workload = {};
  for (StageSpace& stage : machine.space.stages)
    stage.forecasts.clear();
  auto [method, run] = AutoSearch(machine);
  EXPECT_LT(LossOf(machine, method, run), 0.03);
  EXPECT_LT(run.misfits, 8);
}

TEST(AutoTest, TheLatencyOfAFloatingBatchIsLeastAtTheSmallestSize) {
  Machine machine = SmallMachine();
  machine.options.metric = "latency";
  auto [method, run] = AutoSearch(machine);
  const auto picked = static_cast<size_t>(method.Conclude().finalists.at(0));
  EXPECT_EQ(MicroBatchOf(run.proposals[picked].assignment), 1);
}

TEST(AutoTest, AFixedBatchAllowsOnlyItsDivisors) {
  for (const char* metric : {"throughput", "latency"}) {
    Machine machine = SmallMachine();
    machine.options.metric = metric;
    machine.space.samples_per_step = 48;
    machine.space.divisible_by = 2;
    auto [method, run] = AutoSearch(machine, 3);
    for (const Proposal& proposal : run.proposals) {
      EXPECT_EQ(48 % MicroBatchOf(proposal.assignment), 0);
      EXPECT_EQ(MicroBatchOf(proposal.assignment) % 2, 0);
    }
    EXPECT_LT(LossOf(machine, method, run), 0.02) << metric;
  }
}

TEST(AutoTest, WithoutALegalSizeThereIsNothingToPropose) {
  Machine machine = SmallMachine();
  machine.space.samples_per_step = 9;
  machine.space.divisible_by = 2;
  AutoMethod method(machine.space, machine.options);
  EXPECT_FALSE(method.Ask());
  EXPECT_TRUE(method.Conclude().finalists.empty());
}

TEST(AutoTest, ProposalsThatWaitAreAllDifferent) {
  const Machine machine = SmallMachine();
  AutoMethod method(machine.space, machine.options);
  std::set<Assignment> asked;
  for (int i = 0; i < 16; ++i) {
    const std::optional<Proposal> proposal = method.Ask();
    if (!proposal) break;  // More would not be worth their time.
    EXPECT_TRUE(asked.insert(proposal->assignment).second);
  }
  EXPECT_GE(asked.size(), 4u);
}

TEST(AutoTest, WhatDidNotFitIsNotTriedAtLargerSizesAndTheSearchEnds) {
  for (const char* reason : {"", "out of device memory"}) {
    Machine machine = SmallMachine();
    machine.largest = 0;
    machine.misfit = reason;
    auto [method, run] = AutoSearch(machine);
    EXPECT_LT(run.proposals.size(), 100u);
    EXPECT_GE(run.proposals.size(), 4u);
    for (size_t i = 0; i < run.proposals.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        Assignment earlier = run.proposals[j].assignment, later = run.proposals[i].assignment;
        const int64_t size = MicroBatchOf(earlier);
        if (size > MicroBatchOf(later)) continue;
        SetMicroBatch(later, size);
        EXPECT_NE(earlier, later);
      }
    }
    EXPECT_TRUE(method.Conclude().finalists.empty());
  }
}

// The profile of a script that does not use PyTorch sees no activations.
TEST(AutoTest, RunningOutOfMemoryOutweighsForecastsThatAreFarTooLow) {
  Machine machine = SmallMachine();
  machine.misfit = "out of device memory: CUDA out of memory";
  for (StageSpace& stage : machine.space.stages) {
    stage.approx_max_micro_batch = 400;
    stage.forecasts.clear();
    for (const int64_t size : {1, 8, 64, 512})
      stage.forecasts.push_back(
          {.micro_batch_size = size, .peak_bytes = 2 * kGb + size * 2 * kGb / 100});
  }
  auto [method, run] = AutoSearch(machine);
  EXPECT_LT(LossOf(machine, method, run), 0.02);
  EXPECT_LE(run.misfits, 4);
}

// Another program uses most of the device.
TEST(AutoTest, MisfitsInARowLeadToMuchSmallerSizes) {
  Machine machine = SmallMachine();
  machine.misfit = "out of device memory: CUDA out of memory";
  machine.largest = 6;
  auto [method, run] = AutoSearch(machine);
  EXPECT_LT(LossOf(machine, method, run), 0.02);
  const auto first = std::ranges::find(run.trials, TrialState::kSucceeded, &Trial::state);
  EXPECT_LE(first - run.trials.begin(), 6);
}

TEST(AutoTest, GivesUpWhenEverythingFails) {
  const Machine machine = SmallMachine();
  AutoMethod method(machine.space, machine.options);
  int64_t id = 0;
  while (const std::optional<Proposal> proposal = method.Ask())
    method.Tell(proposal->tag, EndedTrial(++id, TrialState::kFailed));
  EXPECT_GE(id, 5);
  EXPECT_LE(id, 20);
}

TEST(AutoTest, AStageThatCrashesIsLeftAloneAfterAFewTrials) {
  for (const bool exact : {false, true}) {
    Machine machine = SmallMachine();
    machine.space.exact = exact;
    AutoMethod method(machine.space, machine.options);
    int failures = 0;
    TrialId id = 0;
    std::map<int64_t, double> speeds;  // By tag.
    while (const std::optional<Proposal> proposal = method.Ask()) {
      const bool crashes = StageOf(proposal->assignment) == 0;  // Where a step is the shortest.
      failures += crashes ? 1 : 0;
      const Trial end = crashes ? EndedTrial(++id, TrialState::kFailed)
                                : EndOf(machine, proposal->assignment, ++id);
      if (end.state == TrialState::kSucceeded)
        speeds[proposal->tag] = 1 / SampleSeconds(machine, proposal->assignment);
      method.Tell(proposal->tag, end);
    }
    EXPECT_GE(failures, 1);
    EXPECT_LE(failures, 7);
    ASSERT_GE(speeds.size(), 8u);
    const Conclusion conclusion = method.Conclude();
    ASSERT_FALSE(conclusion.finalists.empty());
    const auto fastest =
        std::ranges::max_element(speeds, {}, [](const auto& s) { return s.second; });
    EXPECT_GT(speeds.at(conclusion.finalists[0]), 0.98 * fastest->second);
    ASSERT_GE(conclusion.speeds.size(), 5u);  // Some were measured several times.
    EXPECT_EQ(conclusion.speeds[0], std::pair(conclusion.finalists[0], 1.0));
    for (const auto& [tag, speed] : conclusion.speeds)
      EXPECT_NEAR(speed, speeds.at(tag) / speeds.at(conclusion.finalists[0]), 0.05);
  }
}

TEST(AutoTest, ASingleConfigurationIsMeasuredOnce) {
  Machine machine = SmallMachine({2});
  machine.space.stages[0].knobs.clear();
  machine.space.samples_per_step = 1;
  auto [method, run] = AutoSearch(machine, 4);
  EXPECT_EQ(run.proposals.size(), 1u);
  EXPECT_EQ(method.BoundOthers(run.trials.at(0)).value().at_most, 1);
  EXPECT_EQ(method.BoundOthers(run.trials.at(0)).value().num_compared, 1);
  Trial unknown = run.trials[0];
  unknown.points[0].point.micro_batch_size = 2;
  EXPECT_FALSE(method.BoundOthers(unknown));
}

TEST(AutoTest, ALongerTrainingIsWorthALongerSearch) {
  Machine machine = SmallMachine();
  machine.noise = 0.05;
  const auto num_proposals = [&](std::optional<int64_t> run_steps) {
    machine.options.auto_method.run_steps = run_steps;
    return AutoSearch(machine).run.proposals.size();
  };
  // Without a number of steps it takes 300 times as long as the search.
  const size_t by_default = num_proposals(std::nullopt);
  EXPECT_LE(num_proposals(10), by_default);
  EXPECT_LT(by_default, num_proposals(1'000'000'000));
}

// A larger batch takes fewer steps of the submitted batch size for the same samples.
TEST(AutoTest, TheStepsOfTheTrainingHaveTheSubmittedBatchSize) {
  Machine machine = SmallMachine();
  machine.noise = 0.05;
  const auto num_proposals = [&](int64_t submitted_size, int64_t run_steps) {
    machine.options.auto_method.run_steps = run_steps;
    AutoMethod method(machine.space, machine.options);
    Trial submitted = EndedTrial(1000, TrialState::kInfeasible);
    submitted.kind = TrialKind::kSubmitted;
    submitted.ds_config = {{"train_micro_batch_size_per_gpu", submitted_size},
                           {"zero_optimization", {{"stage", 2}}}};
    method.Observe(submitted);
    return Search(machine, method, 1).proposals.size();
  };
  const size_t few = num_proposals(64, 10), many = num_proposals(64, 10'000'000);
  EXPECT_LT(few, many);
  EXPECT_EQ(num_proposals(6400, 100'000), many);
  EXPECT_EQ(num_proposals(64'000'000, 10), many);
}

TEST(AutoTest, TheSubmittedConfigurationIsEvidenceAndCanBeTheFinalist) {
  Machine machine = SmallMachine();
  // Nothing else comes near what was submitted.
  machine.step_s = [](int stage, double size, double) {
    return stage == 2 && size == 6 ? 0.01 : 0.1 * size;
  };
  AutoMethod method(machine.space, machine.options);
  Assignment submitted = PlaceAssignment({.stage = 2});
  SetMicroBatch(submitted, 6);
  Trial trial = EndOf(machine, submitted, 1000);
  trial.kind = TrialKind::kSubmitted;
  trial.ds_config = {{"train_micro_batch_size_per_gpu", 6},
                     {"zero_optimization", {{"stage", 2}, {"reduce_bucket_size", 100'000'000}}}};
  method.Observe(trial);
  std::vector<Proposal> proposals;
  for (int i = 0; i < 100; ++i) {
    const std::optional<Proposal> proposal = method.Ask();
    if (!proposal) break;
    proposals.push_back(*proposal);
    const bool is_same =
        StageOf(proposal->assignment) == 2 && MicroBatchOf(proposal->assignment) == 6 &&
        proposal->assignment.at("/zero_optimization/reduce_bucket_size") == 100'000'000;
    // As searcher/search/proposer.h: an equal configuration has run.
    const bool folds = is_same && !proposal->repeat;
    method.Tell(proposal->tag, folds ? trial : EndOf(machine, proposal->assignment, i + 1));
  }
  const Conclusion conclusion = method.Conclude();
  ASSERT_FALSE(conclusion.finalists.empty());
  const auto finalist = std::ranges::find(proposals, conclusion.finalists[0], &Proposal::tag);
  ASSERT_NE(finalist, proposals.end());
  EXPECT_EQ(StageOf(finalist->assignment), 2);
  EXPECT_EQ(MicroBatchOf(finalist->assignment), 6);
}

TEST(AutoTest, GivesUpOnATrialOnlyClearlyBelowTheBest) {
  const Machine machine = SmallMachine();
  AutoMethod method(machine.space, machine.options);
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    const std::optional<Proposal> proposal = method.Ask();
    ASSERT_TRUE(proposal);
    EXPECT_LT(proposal->give_up_below, best * 0.99 + 1e-9);
    if (i > 3 && !proposal->repeat) {
      EXPECT_GT(proposal->give_up_below, best * 0.5);
    }
    const Trial trial = EndOf(machine, proposal->assignment, i + 1);
    best = std::max(best, MetricValue(trial, "throughput").value_or(0));
    method.Tell(proposal->tag, trial);
  }
}

// Measures points of one launch for as long as the method asks for them.
std::vector<int64_t> SweepOnce(const Machine& machine, AutoMethod& method) {
  const std::optional<Proposal> proposal = method.Ask();
  if (!proposal) return {};
  Assignment assignment = proposal->assignment;
  std::vector<int64_t> sizes;
  Trial trial = EndOf(machine, assignment, proposal->tag + 1);
  if (trial.state == TrialState::kSucceeded) {
    sizes.push_back(MicroBatchOf(assignment));
    while (true) {
      method.Measured(proposal->tag, trial);
      const std::optional<Point> next = method.NextPoint(proposal->tag, trial);
      if (!next) break;
      SetMicroBatch(assignment, next->micro_batch_size);
      const Trial point = EndOf(machine, assignment, proposal->tag + 1);
      if (point.state != TrialState::kSucceeded) break;
      trial.points.push_back(point.points[0]);
      sizes.push_back(next->micro_batch_size);
    }
  }
  method.Tell(proposal->tag, trial);
  return sizes;
}

TEST(AutoTest, SweepsSizesWithinALaunchWhereThatIsCheap) {
  Machine machine = SmallMachine();
  machine.space.exact = true;
  AutoMethod method(machine.space, machine.options), again(machine.space, machine.options);
  size_t points = 0, launches = 0;
  while (launches < 60) {
    const std::vector<int64_t> sizes = SweepOnce(machine, method);
    EXPECT_EQ(sizes, SweepOnce(machine, again));
    if (sizes.empty()) break;
    EXPECT_EQ(std::set(sizes.begin(), sizes.end()).size(), sizes.size());
    points += sizes.size();
    ++launches;
  }
  EXPECT_GT(points, launches);
  EXPECT_LT(launches, 60u);
}

// Short steps are cheap to measure, but those of a size that is slower than the first one of the
// same launch gain nothing.
TEST(AutoTest, APointIsComparedWithThoseOfItsLaunch) {
  Machine machine = SmallMachine();
  machine.space.exact = true;
  AutoMethod method(machine.space, machine.options);
  Assignment assignment = PlaceAssignment({.stage = 2});
  SetMicroBatch(assignment, 1);
  Trial submitted = EndOf(machine, assignment, 1000);
  submitted.kind = TrialKind::kSubmitted;
  method.Observe(submitted);
  const std::vector<int64_t> sizes = SweepOnce(machine, method);
  ASSERT_GT(sizes.size(), 1u);
  for (const int64_t size : sizes)
    EXPECT_GE(2 * size, sizes[0]) << sizes[0];
}

// Launches of it would go on until the end of the budget.
TEST(AutoTest, WhatFailsWhenItIsLaunchedAgainIsNoAnswer) {
  for (const TrialState state : {TrialState::kInfeasible, TrialState::kFailed}) {
    Machine machine = SmallMachine();
    machine.noise = 0.1;
    machine.options.auto_method.run_steps = 100'000'000;
    AutoMethod method(machine.space, machine.options);
    std::map<int64_t, Assignment> assignments;
    std::map<Assignment, int> failures;
    for (int id = 1; id < 60; ++id) {
      const std::optional<Proposal> proposal = method.Ask();
      if (!proposal) break;
      assignments[proposal->tag] = proposal->assignment;
      Trial trial = EndOf(machine, proposal->assignment, id);
      if (proposal->repeat) {
        trial.state = state;
        trial.points.clear();
        ++failures[proposal->assignment];
      }
      method.Tell(proposal->tag, trial);
    }
    ASSERT_FALSE(failures.empty());
    const int most = state == TrialState::kInfeasible ? 1 : 2;
    for (const auto& [assignment, count] : failures)
      EXPECT_LE(count, most);
    for (const int64_t tag : method.Conclude().finalists) {
      const auto found = failures.find(assignments.at(tag));
      EXPECT_TRUE(found == failures.end() || found->second < most);
    }
  }
}

// A confirmation runs trials, so that two points of the same launch would be one finalist.
TEST(AutoTest, FinalistsAreOfDifferentLaunches) {
  Machine machine = SmallMachine();
  machine.space.exact = true;
  machine.options.auto_method.run_steps = 1000;
  AutoMethod method(machine.space, machine.options);
  for (size_t launches = 2; !SweepOnce(machine, method).empty(); ++launches) {
    const std::vector<int64_t> finalists = method.Conclude().finalists;
    const std::set<int64_t> different(finalists.begin(), finalists.end());
    EXPECT_EQ(different.size(), finalists.size()) << launches;
    EXPECT_GE(different.size(), std::min<size_t>(launches - 1, 2)) << launches;
  }
}

}  // namespace
}  // namespace dsat
