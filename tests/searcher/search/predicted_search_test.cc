// A configuration that is predicted not to fit is not launched; and the predictions are in the log,
// so that a replay does not predict again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "profiler/predictor.h"
#include "searcher/search/experiment.h"
#include "tests/db/store_fixtures.h"
#include "tests/profiler/small_gpt2.h"
#include "tests/searcher/search/simulated_trials.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

// A search of the built-in engine. `n_layer` decides what is predicted.
ExperimentSpec BuiltinSpec(const std::string& method, int64_t n_layer = 2) {
  ExperimentSpec spec = SearchSpec(method, 10);
  spec.hyperparameters = SmallGpt2(n_layer);
  return spec;
}

// The profile that dsat-trial reports, with 6 MiB of device memory.
ModelProfile BuiltinProfile() {
  return SmallGpt2Profile(2, int64_t{6} << 20);
}

// A trial as the engine would end it.
Simulated EndOf(const Trial& trial, const Predictor& engine) {
  if (trial.kind == TrialKind::kProfile)
    return {{TrialState::kSucceeded, ""}, {}, BuiltinProfile()};
  if (!engine.Predict(trial.ds_config).fits())
    return {{TrialState::kInfeasible, "out of memory"}, {}, {}};
  const int64_t micro_batch = ConfigPoint(trial).micro_batch_size;
  return {{TrialState::kSucceeded, ""},
          {SamplePoint(100.0 * static_cast<double>(micro_batch), micro_batch)},
          {}};
}

void RunAll(Experiment& experiment) {
  const auto engine = MakePredictor(experiment.search().spec(), BuiltinProfile());
  while (const std::optional<Trial> trial = experiment.Ask()) {
    const Simulated run = EndOf(*trial, *engine);
    experiment.TellExternal(trial->id, run.outcome, run.points, run.profile);
  }
  experiment.FinishIfDone();
}

std::vector<Json> TrialsOf(const Search& search) {
  std::vector<Json> trials;
  for (const auto& [id, trial] : search.trials())
    trials.push_back({{"assignment", trial.assignment},
                      {"state", ToString(trial.state)},
                      {"ds_config", trial.ds_config}});
  return trials;
}

// Runs trials to the end of the search, each with the points that its method asks for.
void RunPoints(Experiment& experiment, const Predictor& engine) {
  while (true) {
    std::vector<TrialId> running = experiment.search().Running();
    if (running.empty()) {
      const std::optional<Trial> trial = experiment.Ask();
      if (!trial) break;
      running = {trial->id};
    }
    const Trial& trial = experiment.search().trials().at(running[0]);
    const Simulated run = EndOf(trial, engine);
    const int64_t attempt = experiment.StartAttempt(trial.id, "/logs");
    if (run.profile) experiment.RecordMeasured(trial.id, attempt, {}, run.profile);
    std::optional<Point> next = ConfigPoint(trial);
    while (next && !run.points.empty()) {
      PointResult point =
          SamplePoint(100.0 + static_cast<double>(next->micro_batch_size), next->micro_batch_size);
      point.point = *next;
      experiment.RecordMeasured(trial.id, attempt, point, {});
      next = experiment.NextPoint(trial.id);
    }
    experiment.EndAttempt(trial.id, attempt, run.outcome, "");
    experiment.Tell(trial.id, run.outcome);
  }
  experiment.FinishIfDone();
}

// A replay takes over what was decided: what comes after it shows that nothing is missing.
TEST(PredictedAutoTest, ASearchByPointsKilledAfterAnyEventGoesOnAsIfItHadNotBeen) {
  ExperimentSpec spec = BuiltinSpec("auto");
  spec.options.max_trials = 6;
  spec.options.max_concurrent_trials = 1;
  Store whole = Store::InMemory();
  Experiment uninterrupted = Experiment::Create(whole, spec);
  const auto engine = MakePredictor(spec, BuiltinProfile());
  RunPoints(uninterrupted, *engine);
  const std::vector<Event> log = whole.Events(1);
  EXPECT_GT(std::ranges::count(log, EventKind::kMeasured, &Event::kind),
            std::ssize(uninterrupted.search().trials()) + 1);
  for (size_t cut = 5; cut < log.size(); cut += 7) {
    Store store = Logged(spec, std::span(log).first(cut));
    Experiment resumed = Experiment::Open(store, 1);
    RunPoints(resumed, *engine);
    EXPECT_EQ(TrialsOf(resumed.search()), TrialsOf(uninterrupted.search())) << "event " << cut;
  }
}

class PredictedSearchTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Methods, PredictedSearchTest,
                         ::testing::Values("random", "grid", "binary", "asha"),
                         [](const auto& method) { return method.param; });

TEST_P(PredictedSearchTest, NoTrialRunsOutOfMemoryAndRefusalsUseUpNoTrial) {
  Store store = Store::InMemory();
  Experiment experiment = Experiment::Create(store, BuiltinSpec(GetParam()));
  RunAll(experiment);
  const Search& search = experiment.search();
  EXPECT_EQ(search.trials().size(), 10U);
  for (const auto& [id, trial] : search.trials())
    EXPECT_EQ(trial.state, TrialState::kSucceeded) << id << ": " << trial.reason;
  // These try what is beyond the range.
  const bool tries_beyond = GetParam() == "binary" || GetParam() == "random";
  EXPECT_TRUE(search.NumRefused() > 0 || !tries_beyond);
  std::set<Assignment> refused;
  for (const Event& event : store.Events(1)) {
    if (event.kind != EventKind::kAnswered) continue;
    const Answered answered = AnsweredOf(event);
    EXPECT_EQ(answered.reason.empty(), answered.trial.has_value());
    if (!answered.trial) refused.insert(answered.assignment);
  }
  EXPECT_GE(std::ssize(refused), search.NumRefused());
  // Where the range ends is where memory does.
  ASSERT_TRUE(search.space());
  EXPECT_TRUE(search.space()->exact);
  const auto engine = MakePredictor(search.spec(), BuiltinProfile());
  for (const StageSpace& stage : search.space()->stages) {
    Json config = search.spec().ds_config;
    config["zero_optimization"]["stage"] = stage.stage;
    EXPECT_EQ(stage.approx_max_micro_batch, engine->LargestMicroBatch(config));
  }
}

TEST_P(PredictedSearchTest, AReplayTakesTheRecordedVerdictsWhateverThePredictorSaysNow) {
  Store whole = Store::InMemory();
  Experiment experiment = Experiment::Create(whole, BuiltinSpec(GetParam()));
  RunAll(experiment);
  const std::vector<Event> log = whole.Events(1);
  // Another model: needs far more, or less, or cannot be built at all.
  std::vector<ExperimentSpec> others = {BuiltinSpec(GetParam(), 40), BuiltinSpec(GetParam(), 1),
                                        BuiltinSpec(GetParam())};
  others[2].hyperparameters["model"] = {{"type", "no such model"}};
  for (const ExperimentSpec& spec : others) {
    Store store = Logged(spec, log);
    const Experiment replayed = Experiment::Open(store, 1);
    EXPECT_EQ(TrialsOf(replayed.search()), TrialsOf(experiment.search()));
    EXPECT_EQ(replayed.search().NumRefused(), experiment.search().NumRefused());
    EXPECT_EQ(ToJson(*replayed.search().space()), ToJson(*experiment.search().space()));
  }
}

TEST_P(PredictedSearchTest, ASearchKilledAfterAnyEventGoesOnAsIfItHadNotBeen) {
  const ExperimentSpec spec = BuiltinSpec(GetParam());
  Store whole = Store::InMemory();
  Experiment uninterrupted = Experiment::Create(whole, spec);
  RunAll(uninterrupted);
  const std::vector<Event> log = whole.Events(1);
  const auto engine = MakePredictor(spec, BuiltinProfile());
  // A trial has four events: every kind is the last one of some log.
  for (size_t cut = 0; cut < log.size(); cut += 3) {
    Store store = Logged(spec, std::span(log).first(cut));
    Experiment resumed = Experiment::Open(store, 1);
    for (const TrialId id : resumed.search().Running()) {
      const Simulated run = EndOf(resumed.search().trials().at(id), *engine);
      resumed.TellExternal(id, run.outcome, run.points, run.profile);
    }
    if (resumed.state() == ExperimentState::kActive) RunAll(resumed);
    EXPECT_EQ(TrialsOf(resumed.search()), TrialsOf(uninterrupted.search())) << cut;
  }
}

// Looking whether there is a next trial, while another process asks for it.
TEST_P(PredictedSearchTest, AProcessThatHasLookedAheadTakesWhatAnotherHasLogged) {
  const TempFolder folder;
  Store first = Store::Open(folder / "dsat.db", Store::Mode::kCreate);
  Store second = Store::Open(folder / "dsat.db", Store::Mode::kReadWrite);
  Experiment a = Experiment::Create(first, BuiltinSpec(GetParam()));
  Experiment b = Experiment::Open(second, 1);
  const auto engine = MakePredictor(a.search().spec(), BuiltinProfile());
  while (!a.FinishIfDone()) {
    const std::optional<Trial> trial = b.Ask();
    ASSERT_TRUE(trial);
    const Simulated run = EndOf(*trial, *engine);
    a.TellExternal(trial->id, run.outcome, run.points, run.profile);
  }
  b.CatchUp();
  EXPECT_EQ(TrialsOf(b.search()), TrialsOf(a.search()));
}

// A log of before predictions were recorded: its profile does not say what it was measured on.
TEST_P(PredictedSearchTest, ALogWithoutVerdictsGoesOnWithoutThem) {
  ExperimentSpec spec = BuiltinSpec(GetParam());
  ModelProfile profile = BuiltinProfile();
  profile.device.clear();
  profile.num_threads = 0;
  Store store = Store::InMemory();
  Experiment experiment = Experiment::Create(store, spec);
  experiment.TellExternal(experiment.Ask()->id, {TrialState::kSucceeded, ""}, {}, profile);
  std::vector<Event> log = store.Events(1);
  ASSERT_EQ(log.back().payload.erase("space"), 1U);
  Store old = Logged(spec, log);
  Experiment replayed = Experiment::Open(old, 1);
  EXPECT_FALSE(replayed.search().space()->exact);
  EXPECT_EQ(ToJson(*replayed.search().space()), ToJson(*experiment.search().space()));
  RunAll(replayed);
  EXPECT_EQ(replayed.search().NumRefused(), 0);
}

TEST(PredictedMisfitTest, AModelThatFitsNowhereFailsTheSearchAndSaysWhy) {
  ExperimentSpec spec = BuiltinSpec("binary");
  spec.options.max_concurrent_trials = 1;
  Store store = Store::InMemory();
  Experiment experiment = Experiment::Create(store, spec);
  ModelProfile profile = BuiltinProfile();
  profile.device_memory_bytes = 1000;
  experiment.TellExternal(experiment.Ask()->id, {TrialState::kSucceeded, ""}, {}, profile);
  const Trial submitted = *experiment.Ask();
  EXPECT_EQ(submitted.kind, TrialKind::kSubmitted);
  EXPECT_FALSE(experiment.Ask());
  experiment.TellExternal(submitted.id, {TrialState::kInfeasible, "out of memory"}, {}, {});
  EXPECT_TRUE(experiment.FinishIfDone());
  EXPECT_EQ(experiment.state(), ExperimentState::kFailed);
  EXPECT_THAT(experiment.reason(), HasSubstr("out of memory"));
  for (const StageSpace& stage : experiment.search().space()->stages)
    EXPECT_EQ(stage.approx_max_micro_batch, 0);
}

}  // namespace
}  // namespace dsat
