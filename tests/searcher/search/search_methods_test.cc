// Tests the guarantees of a search with every method, by default and with --compat determined.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "methods/methods.h"
#include "profiler/effective_key.h"
#include "searcher/search/search.h"
#include "tests/sanitizers.h"
#include "tests/searcher/search/simulated_device.h"

namespace dsat {
namespace {

using testing::HasSubstr;

Ending AllButTheProfileFail(const Trial& trial) {
  return trial.kind == TrialKind::kProfile ? Success(trial, 1) : Failure(TrialState::kInfeasible);
}

std::map<TrialState, int> CountStates(const Search& search) {
  std::map<TrialState, int> counts;
  for (const auto& [id, trial] : search.trials())
    ++counts[trial.state];
  return counts;
}

struct Case {
  std::string method;
  bool compat = false;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.method;
}

// The grid and auto draw nothing and end before max_trials when nothing is left to learn.
bool EndsByItself(const std::string& method) {
  return method == "grid" || method == "auto";
}

class EveryMethod : public testing::TestWithParam<Case> {
 protected:
  ExperimentSpec Spec() const {
    ExperimentSpec spec = SimulatedSpec(GetParam().method);
    spec.options.compat_determined = GetParam().compat;
    spec.options.max_trials = static_cast<int64_t>(MaxTrials());
    return spec;
  }
  // A decision of auto takes longer the more trials there are, and sanitizers see the same code.
  static size_t MaxTrials() { return IsSanitized() && GetParam().method == "auto" ? 20 : 40; }
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const MethodInfo& method : Methods()) {
    cases.push_back({method.name, false});
    if (method.name != "auto") cases.push_back({method.name, true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(, EveryMethod, testing::ValuesIn(AllCases()), [](const auto& info) {
  return info.param.method + (info.param.compat ? "_published" : "");
});

TEST_P(EveryMethod, IfAllSucceedExactlyMaxTrialsRunAndTheExperimentHasNotFailed) {
  Search search(Spec());
  RunToEnd(search, AllSucceed);
  EXPECT_EQ(search.trials().size(), MaxTrials());
  EXPECT_EQ(CountStates(search)[TrialState::kSucceeded], static_cast<int>(MaxTrials()));
  EXPECT_TRUE(search.Finished());
  EXPECT_EQ(search.FailureReason(), "");
  EXPECT_FALSE(search.Ask());
}

TEST_P(EveryMethod, ImprovingResultsEndWithTheLastTrialAsTheBest) {
  ExperimentSpec spec = Spec();
  spec.options.max_concurrent_trials = 1;
  Search search(spec);
  RunToEnd(search, AllSucceed);
  EXPECT_EQ(search.Best(), static_cast<TrialId>(search.trials().size()) - 1);
  EXPECT_TRUE(search.trials().size() == MaxTrials() || EndsByItself(GetParam().method));
}

TEST_P(EveryMethod, IfAllButTheProfileFailTheExperimentHasFailed) {
  Search search(Spec());
  RunToEnd(search, AllButTheProfileFail);
  // The grid gives up on a stage whose smallest size does not fit.
  if (!EndsByItself(GetParam().method)) {
    EXPECT_EQ(search.trials().size(), MaxTrials());
  }
  EXPECT_EQ(CountStates(search)[TrialState::kSucceeded], 1);
  EXPECT_EQ(CountStates(search)[TrialState::kInfeasible],
            static_cast<int>(search.trials().size()) - 1);
  EXPECT_THAT(search.FailureReason(),
              HasSubstr(search.Submitted() ? "no trial succeeded; the submitted one (trial 1) "
                                           : "no trial succeeded; the last one (trial "));
  EXPECT_THAT(search.FailureReason(), HasSubstr("simulated: infeasible"));
  EXPECT_FALSE(search.Best());
}

TEST_P(EveryMethod, ConditionsHoldInEveryTrialButTheProfileAndTheSubmittedOne) {
  const std::string reduce = "/zero_optimization/reduce_bucket_size";
  const std::string allgather = "/zero_optimization/allgather_bucket_size";
  ExperimentSpec spec = Spec();
  spec.where = {reduce + " < " + allgather};  // The submitted ones are equal.
  spec.search_space = {{reduce, {1'000'000, 2'000'000}}, {allgather, {1'000'000, 2'000'000}}};
  Search search(spec);
  RunToEnd(search, AllSucceed);
  EXPECT_GT(search.trials().size(), 8u);
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind != TrialKind::kSearch) continue;
    EXPECT_LT(*FindAtPointer(trial.ds_config, reduce),
              trial.ds_config.at("zero_optimization").value("allgather_bucket_size", 500'000'000))
        << id;
  }
}

TEST_P(EveryMethod, AScriptSearchesKeysThatTheTableLacks) {
  ExperimentSpec spec = Spec();
  spec.entrypoint = {"python3", "train.py"};
  spec.search_space = {{"/zero_optimization/brand_new", {"low", "high"}}};
  Search search(spec);
  RunToEnd(search, [](const Trial& trial) { return OnDevice(trial, false); });
  std::set<Json> tried;
  for (const auto& [id, trial] : search.trials()) {
    const Json* value = FindAtPointer(trial.ds_config, "/zero_optimization/brand_new");
    if (value != nullptr) tried.insert(*value);
  }
  EXPECT_EQ(tried, (std::set<Json>{"high", "low"}));
}

TEST_P(EveryMethod, AConditionThatNoConfigurationMeetsIsRefusedByName) {
  ExperimentSpec spec = Spec();
  spec.where = {"/zero_optimization/reduce_bucket_size < 5"};
  Search search(spec);
  EXPECT_THAT([&] { RunToEnd(search, AllSucceed); },
              testing::ThrowsMessage<Error>(HasSubstr("meets \"" + spec.where[0] + "\"")));
}

TEST_P(EveryMethod, OneFailureStopsNothing) {
  Search search(Spec());
  RunToEnd(search, [](const Trial& trial) {
    return trial.id == 5 ? Failure(TrialState::kFailed) : AllSucceed(trial);
  });
  EXPECT_EQ(search.trials().size(), MaxTrials());
  EXPECT_EQ(CountStates(search)[TrialState::kFailed], 1);
  EXPECT_EQ(search.FailureReason(), "");
}

TEST_P(EveryMethod, AFailedProfilingTrialEndsTheExperiment) {
  for (const TrialState state :
       {TrialState::kFailed, TrialState::kInfeasible, TrialState::kStopped}) {
    Search search(Spec());
    RunToEnd(search, [&](const Trial&) { return Failure(state); });
    // A config that does not fit is tried with less and less memory, except in the published
    // behavior.
    const bool is_retried =
        state == TrialState::kInfeasible && !search.spec().options.compat_determined;
    EXPECT_EQ(search.trials().size(), is_retried ? 4u : 1u);
    EXPECT_TRUE(search.Finished());
    EXPECT_FALSE(search.Ask());
    EXPECT_THAT(search.FailureReason(), HasSubstr("profiling trial"));
    EXPECT_THAT(search.FailureReason(), HasSubstr(ToString(state)));
    EXPECT_FALSE(search.profile());
    EXPECT_FALSE(search.space());
  }
}

TEST_P(EveryMethod, CountsAreExactAtEveryStepAndLimitsAreNeverExceeded) {
  for (const TrialState rest : {TrialState::kSucceeded, TrialState::kInfeasible}) {
    for (const int64_t concurrent : {1, 4, 100}) {
      ExperimentSpec spec = Spec();
      spec.options.max_trials = 20;
      spec.options.max_concurrent_trials = concurrent;
      spec.options.max_slots = 11;  // Five trials of two slots.
      Search search(spec);
      size_t asked = 0;
      size_t told = 0;
      size_t most_running = 0;
      while (!search.Finished()) {
        if (const std::optional<Trial> trial = search.Ask()) {
          EXPECT_EQ(trial->id, static_cast<TrialId>(asked++));
          EXPECT_EQ(trial->state, TrialState::kRunning);
        } else if (!search.Running().empty()) {
          const Trial& first = search.trials().at(search.Running().front());
          const bool succeeds = first.kind == TrialKind::kProfile || rest == TrialState::kSucceeded;
          Tell(search, first.id, succeeds ? AllSucceed(first) : Failure(rest));
          ++told;
        }
        EXPECT_EQ(search.trials().size(), asked);
        EXPECT_EQ(search.Running().size(), asked - told);
        most_running = std::max(most_running, search.Running().size());
        if (asked > told) {
          EXPECT_EQ(search.FailureReason(), "");
        }
      }
      EXPECT_LE(asked, 20u);
      EXPECT_EQ(asked, told);
      if (!EndsByItself(GetParam().method)) {
        EXPECT_EQ(asked, 20u);
        EXPECT_EQ(most_running, static_cast<size_t>(std::min<int64_t>(concurrent, 5)));
      }
      EXPECT_LE(most_running, static_cast<size_t>(std::min<int64_t>(concurrent, 5)));
      EXPECT_EQ(search.FailureReason() == "", rest == TrialState::kSucceeded);
    }
  }
}

TEST_P(EveryMethod, EqualConfigurationsRunOnceUnlessPublishedBehaviorIsAskedFor) {
  ExperimentSpec spec = Spec();
  spec.slots_per_trial = 1;  // Without communication little is left to differ in.
  spec.options.max_trials = 200;
  Search search(spec);
  RunToEnd(search, [](const Trial& trial) { return OnDevice(trial, true); });
  std::set<std::string> keys;
  size_t searched = 0;
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind == TrialKind::kProfile) continue;
    ++searched;
    keys.insert(EffectiveKey(trial.ds_config, spec, SimulatedProfile().num_params));
  }
  if (GetParam().method == "auto") {
    EXPECT_LE(keys.size(), searched);  // It may measure one again.
  } else if (GetParam().compat) {
    EXPECT_LT(keys.size(), searched);
  } else {
    EXPECT_EQ(keys.size(), searched);
    EXPECT_LT(searched, 150u) << "it ends when nothing new is left";
  }
  EXPECT_EQ(search.FailureReason(), "");
}

TEST_P(EveryMethod, TheBestIsFoundInTheDirectionOfTheMetric) {
  for (const std::string& metric : SearchMetrics()) {
    // One metric of each direction is enough for the code that sanitizers see.
    if (IsSanitized() && metric != "latency" && metric != "throughput") continue;
    ExperimentSpec spec = Spec();
    spec.options.metric = metric;
    Search search(spec);
    std::optional<double> best;
    RunToEnd(search, [&](const Trial& trial) {
      const Ending ending = OnDevice(trial, false);
      if (trial.kind == TrialKind::kProfile || ending.points.empty()) return ending;
      const double value = ending.points[0].measurement.at(metric).value;
      const bool smaller = metric == "latency" || metric == "forward" || metric == "backward";
      if (!best || (smaller ? value < *best : value > *best)) best = value;
      return ending;
    });
    ASSERT_TRUE(best && search.Best());
    EXPECT_EQ(MetricValue(search.trials().at(*search.Best()), metric), best) << metric;
  }
}

TEST_P(EveryMethod, TrialsStayWithinTheStagesAskedFor) {
  ExperimentSpec spec = Spec();
  spec.options.zero_stages = {0, 3};
  Search search(spec);
  RunToEnd(search, AllSucceed);
  std::set<int> stages;
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind != TrialKind::kSearch) continue;
    stages.insert(trial.ds_config.at("/zero_optimization/stage"_json_pointer).get<int>());
  }
  EXPECT_FALSE(stages.empty());
  for (const int stage : stages)
    EXPECT_TRUE(stage == 0 || stage == 3) << stage;
}

TEST_P(EveryMethod, ASeedDecidesTheSearchAndAnotherSeedDecidesAnother) {
  const auto run = [&](int64_t seed) {
    ExperimentSpec spec = Spec();
    spec.options.random_seed = seed;
    Search search(spec);
    RunToEnd(search, [](const Trial& trial) { return OnDevice(trial, false); });
    std::vector<Assignment> assignments;
    for (const auto& [id, trial] : search.trials())
      assignments.push_back(trial.assignment);
    return assignments;
  };
  EXPECT_EQ(run(1), run(1));
  if (GetParam().method == "auto") return;  // The seed only decides how sure it is.
  EXPECT_EQ(run(1) != run(2), !EndsByItself(GetParam().method));
}

}  // namespace
}  // namespace dsat
