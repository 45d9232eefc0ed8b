// Tests the contract of the store, with a file and in memory.
#include "db/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "db/event.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StoreTest : public ::testing::TestWithParam<bool> {
 protected:
  StoreTest() : store_(OnDisk() ? Store::Open(path(), Store::Mode::kCreate) : Store::InMemory()) {}

  bool OnDisk() const { return GetParam(); }
  std::string path() const { return folder_ / "dsat.db"; }

  // Closes and opens the file; memory stays as it is.
  void Reopen() {
    if (!OnDisk()) return;
    store_ = Store::InMemory();
    store_ = Store::Open(path(), Store::Mode::kReadWrite);
  }

  int64_t Append(ExperimentId id, const std::vector<Event>& events) {
    const std::vector<Event> log = store_.Events(id);
    return store_.Append(id, log.empty() ? 0 : log.back().seq, events);
  }

  // Asks for, launches, measures and tells one trial.
  void AddTrial(ExperimentId id, TrialId trial, double throughput,
                TrialKind kind = TrialKind::kSearch) {
    AddTrial(id, trial, throughput, SampleTrial(trial, kind));
  }
  void AddTrial(ExperimentId id, TrialId trial, double throughput, const Trial& asked) {
    const Outcome success{TrialState::kSucceeded, ""};
    Append(id, {AskedEvent(asked), AttemptStartedEvent(trial, 0, "/logs"),
                MeasuredEvent(trial, 0, SamplePoint(throughput), std::nullopt),
                AttemptEndedEvent(trial, 0, success, ""), ToldEvent(trial, success)});
  }

  TempFolder folder_;
  Store store_;
};

INSTANTIATE_TEST_SUITE_P(Places, StoreTest, ::testing::Values(false, true),
                         [](const auto& place) { return place.param ? "File" : "Memory"; });

TEST_P(StoreTest, SpecsAreKeptWhole) {
  ExperimentSpec spec = SampleSpec();
  spec.profile = SampleProfile();
  spec.options.random.early_stopping = 7;
  spec.hyperparameters = {{"model", {{"name", "gpt2 \"tiny\" \u00fc"}}}};
  const ExperimentId id = store_.CreateExperiment(spec);
  Reopen();
  EXPECT_EQ(ToJson(store_.GetSpec(id)), ToJson(spec));
}

TEST_P(StoreTest, ExperimentsAreNumberedFromOneAndListedInOrder) {
  ExperimentSpec spec = SampleSpec("latency");
  EXPECT_EQ(store_.CreateExperiment(spec), 1);
  spec.name = "other";
  EXPECT_EQ(store_.CreateExperiment(spec), 2);
  Reopen();
  const std::vector<ExperimentRow> rows = store_.ListExperiments();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].id, 1);
  EXPECT_EQ(rows[1].name, "other");
  EXPECT_EQ(rows[1].method, "random");
  EXPECT_EQ(rows[1].metric, "latency");
  EXPECT_EQ(rows[1].state, ExperimentState::kActive);
  EXPECT_EQ(rows[1].num_trials, 0);
  EXPECT_TRUE(store_.BestTrials().empty());
  EXPECT_THAT(rows[1].created_at, ::testing::MatchesRegex("20[0-9-]+T[0-9:]+\\.[0-9]+Z"));
}

TEST_P(StoreTest, ExperimentsOfOtherProgramsHaveNoRunner) {
  ExperimentSpec spec = SampleSpec();
  store_.CreateExperiment(spec);
  spec.start_dir = "/home/user";
  store_.CreateExperiment(spec);
  EXPECT_FALSE(store_.GetExperiment(1).has_runner);
  EXPECT_TRUE(store_.GetExperiment(2).has_runner);
  Append(1, {AskedEvent(SampleTrial(0)), AttemptStartedEvent(0, 0, "")});
  EXPECT_FALSE(store_.GetExperiment(1).has_runner);
  Append(1, {AskedEvent(SampleTrial(1)), AttemptStartedEvent(1, 0, "/logs")});  // Resumed.
  EXPECT_TRUE(store_.GetExperiment(1).has_runner);
}

TEST_P(StoreTest, ExperimentsAreFoundByNumberAndByNewestName) {
  store_.CreateExperiment(SampleSpec());
  store_.CreateExperiment(SampleSpec());
  EXPECT_EQ(store_.FindExperiment("1"), 1);
  EXPECT_EQ(store_.FindExperiment("sample"), 2);
  // A check has the name of the search whose answer it measures again.
  ExperimentSpec check = SampleSpec();
  check.method = "check";
  store_.CreateExperiment(check);
  EXPECT_EQ(store_.FindExperiment("sample"), 2);
  EXPECT_EQ(store_.FindExperiment("3"), 3);
  ExperimentSpec number = SampleSpec();
  number.name = "2024";
  store_.CreateExperiment(number);
  EXPECT_EQ(store_.FindExperiment("2024"), 4);
  number.name = "1";
  store_.CreateExperiment(number);
  EXPECT_EQ(store_.FindExperiment("1"), 1);
}

TEST_P(StoreTest, UnknownExperimentsAreNamedWithThoseThatExist) {
  store_.CreateExperiment(SampleSpec());
  EXPECT_THAT(RefusalOf([&] { store_.FindExperiment("7"); }, ErrorCode::kNotFound),
              testing::AllOf(HasSubstr("no experiment 7"), HasSubstr("1 (sample)")));
  EXPECT_EQ(CodeOf([&] { store_.FindExperiment("llama"); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { store_.GetSpec(7); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { store_.GetExperiment(7); }), ErrorCode::kNotFound);
}

TEST_P(StoreTest, EventsComeBackInOrderAndWhole) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  const std::vector<Event> events = {
      AskedEvent(SampleTrial(0, TrialKind::kProfile)),
      AttemptStartedEvent(0, 0, "/logs/0"),
      MeasuredEvent(0, 0, SamplePoint(12.5), SampleProfile()),
      AttemptEndedEvent(0, 0, {TrialState::kFailed, "exit 1"}, "a\n\"b\"\n"),
      ToldEvent(0, {TrialState::kFailed, "exit 1"}),
      StateChangedEvent(ExperimentState::kFailed, "no profile")};
  EXPECT_EQ(store_.Append(id, 0, events), 6);
  Reopen();
  const std::vector<Event> log = store_.Events(id);
  ASSERT_EQ(log.size(), events.size());
  for (size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i].seq, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(log[i].kind, events[i].kind);
    EXPECT_EQ(log[i].trial, events[i].trial);
    EXPECT_EQ(log[i].payload, events[i].payload);
  }
  EXPECT_EQ(store_.Events(id, 4).size(), 2U);
  EXPECT_EQ(store_.Events(id, 4).front().seq, 5);
}

TEST_P(StoreTest, LogsOfTwoExperimentsDoNotMix) {
  const ExperimentId a = store_.CreateExperiment(SampleSpec());
  const ExperimentId b = store_.CreateExperiment(SampleSpec());
  AddTrial(a, 0, 10);
  AddTrial(b, 0, 20);
  AddTrial(a, 1, 30);
  EXPECT_EQ(store_.Events(a).size(), 10U);
  EXPECT_EQ(store_.Events(b).size(), 5U);
  EXPECT_EQ(store_.Trials(a).size(), 2U);
  EXPECT_EQ(store_.BestTrials().at(a).value, 30);
  EXPECT_EQ(store_.BestTrials().at(b).value, 20);
}

TEST_P(StoreTest, AppendBehindTheLogIsAbortedAndWritesNothing) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  store_.Append(id, 0, std::array{AskedEvent(SampleTrial(0))});
  for (const int64_t expected : {0, 2}) {
    EXPECT_EQ(CodeOf([&] { store_.Append(id, expected, std::array{AskedEvent(SampleTrial(1))}); }),
              ErrorCode::kAborted);
  }
  EXPECT_EQ(store_.Events(id).size(), 1U);
  EXPECT_EQ(store_.Trials(id).size(), 1U);
}

TEST_P(StoreTest, AnAppendIsAllOrNothing) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  const std::vector<Event> events = {AskedEvent(SampleTrial(0)), AskedEvent(SampleTrial(1)),
                                     ToldEvent(5, {TrialState::kFailed, "no such trial"})};
  EXPECT_EQ(CodeOf([&] { store_.Append(id, 0, events); }), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(store_.Events(id).empty());
  EXPECT_TRUE(store_.Trials(id).empty());
}

TEST_P(StoreTest, EventsThatCannotFollowAreRefused) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  const Outcome failure{TrialState::kFailed, "x"};
  Append(id, {AskedEvent(SampleTrial(0))});
  const std::vector<Event> wrong = {
      AskedEvent(SampleTrial(0)),                          // Asked for already.
      AttemptStartedEvent(3, 0, ""),                       // No such trial.
      MeasuredEvent(0, 0, SamplePoint(1), std::nullopt),   // Never launched.
      MeasuredEvent(0, 0, std::nullopt, SampleProfile()),  // Never launched.
      AttemptEndedEvent(0, 0, failure, ""),
      ToldEvent(3, failure)};
  for (const Event& event : wrong) {
    EXPECT_EQ(CodeOf([&] { Append(id, {event}); }), ErrorCode::kInvalidArgument)
        << ToString(event.kind) << " " << event.payload.dump();
  }
  EXPECT_EQ(CodeOf([&] { store_.Append(99, 0, std::array{AskedEvent(SampleTrial(0))}); }),
            ErrorCode::kNotFound);
  EXPECT_EQ(store_.Events(id).size(), 1U);
}

TEST_P(StoreTest, TrialsFollowFromTheirEvents) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  const Outcome crash{TrialState::kFailed, "exit code 1 of rank 0"},
      success{TrialState::kSucceeded, ""};
  Append(id, {AskedEvent(SampleTrial(0)), AttemptStartedEvent(0, 0, "/logs/0"),
              MeasuredEvent(0, 0, SamplePoint(99), std::nullopt),
              AttemptEndedEvent(0, 0, crash, "Traceback"), AttemptStartedEvent(0, 1, "/logs/1"),
              MeasuredEvent(0, 1, SamplePoint(10, 2), std::nullopt),
              MeasuredEvent(0, 1, SamplePoint(20, 4), std::nullopt)});
  EXPECT_EQ(store_.Trials(id)[0].state, TrialState::kRunning);
  Append(id, {AttemptEndedEvent(0, 1, success, ""), ToldEvent(0, success)});
  Reopen();
  const std::vector<Trial> trials = store_.Trials(id);
  ASSERT_EQ(trials.size(), 1U);
  EXPECT_EQ(trials[0].state, TrialState::kSucceeded);
  EXPECT_EQ(trials[0].kind, TrialKind::kSearch);
  EXPECT_EQ(trials[0].assignment, SampleTrial(0).assignment);
  EXPECT_EQ(trials[0].ds_config, SampleTrial(0).ds_config);
  // The points are those of the last attempt: the first one crashed.
  ASSERT_EQ(trials[0].points.size(), 2U);
  EXPECT_EQ(trials[0].points[0].point.micro_batch_size, 2);
  EXPECT_EQ(ToJson(trials[0].points[1].measurement), ToJson(SamplePoint(20, 4).measurement));
  const QueryResult attempts =
      store_.Query("SELECT attempt, state, reason, log_dir, log_tail FROM attempts");
  EXPECT_THAT(attempts.rows,
              ElementsAre(ElementsAre(0, "failed", crash.reason, "/logs/0", "Traceback"),
                          ElementsAre(1, "succeeded", "", "/logs/1", "")));
}

TEST_P(StoreTest, AProfileWithoutAPointIsKept) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  Append(id, {AskedEvent(SampleTrial(0, TrialKind::kProfile)), AttemptStartedEvent(0, 0, ""),
              MeasuredEvent(0, 0, std::nullopt, SampleProfile())});
  const Trial trial = store_.Trials(id)[0];
  ASSERT_TRUE(trial.profile.has_value());
  EXPECT_EQ(ToJson(*trial.profile), ToJson(SampleProfile()));
  EXPECT_TRUE(trial.points.empty());
}

TEST_P(StoreTest, ATrialToldWhileItsLaunchIsOpenTakesTheLaunchWithIt) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  Append(id, {AskedEvent(SampleTrial(0)), AttemptStartedEvent(0, 0, ""),
              ToldEvent(0, {TrialState::kStopped, "canceled"})});
  EXPECT_THAT(store_.Query("SELECT state, reason, ended_at IS NULL FROM attempts").rows,
              ElementsAre(ElementsAre("stopped", "canceled", 0)));
}

TEST_P(StoreTest, TheBestTrialIsTheLargestOrTheSmallestByMetric) {
  const ExperimentId fast = store_.CreateExperiment(SampleSpec("throughput"));
  const ExperimentId quick = store_.CreateExperiment(SampleSpec("latency"));
  for (const ExperimentId id : {fast, quick}) {
    AddTrial(id, 0, 99, TrialKind::kProfile);  // Does not count.
    AddTrial(id, 1, 10, TrialKind::kSubmitted);
    AddTrial(id, 2, 40);
    AddTrial(id, 3, 40);  // A tie: the first one stays.
    AddTrial(id, 4, 20);
  }
  EXPECT_EQ(store_.BestTrials().at(fast).trial, 2);
  EXPECT_EQ(store_.BestTrials().at(fast).value, 40);
  EXPECT_EQ(store_.BestTrials().at(quick).trial, 2);  // Latency is 8000 / throughput.
  EXPECT_EQ(store_.BestTrials().at(quick).value, 200);
  EXPECT_THAT(store_
                  .Query("SELECT experiment, trial, micro_batch_size, zero_stage FROM best_trials"
                         " ORDER BY experiment")
                  .rows,
              ElementsAre(ElementsAre(1, 2, 4, 2), ElementsAre(2, 2, 4, 2)));
}

// The configuration that was confirmed counts, not the luckiest measurement.
TEST_P(StoreTest, TheBestTrialIsThePickAndNeverAConfirmation) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  AddTrial(id, 0, 40);
  AddTrial(id, 1, 50);
  AddTrial(id, 2, 90, SampleConfirm(2, 0));
  EXPECT_EQ(store_.BestTrials().at(id).trial, 1);
  EXPECT_EQ(store_.Trials(id)[2].confirms, 0);
  EXPECT_THAT(store_.Query("SELECT trial, kind, confirms FROM trial_metrics").rows,
              ElementsAre(ElementsAre(0, "search", Json()), ElementsAre(1, "search", Json()),
                          ElementsAre(2, "confirm", 0)));
  Append(id,
         {SearchEndedEvent("max_trials"), StateChangedEvent(ExperimentState::kCompleted, "", 0)});
  EXPECT_EQ(store_.BestTrials().at(id).trial, 0);
  EXPECT_EQ(store_.BestTrials().at(id).value, 40);
  Append(id, {LimitsRaisedEvent({})});
  EXPECT_EQ(store_.BestTrials().at(id).trial, 1);
}

TEST_P(StoreTest, OnlyAConfirmationConfirms) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  for (const TrialKind kind : {TrialKind::kSearch, TrialKind::kConfirm}) {
    Trial trial = SampleTrial(0, kind);
    if (kind == TrialKind::kSearch) trial.confirms = 0;
    EXPECT_EQ(CodeOf([&] { Append(id, {AskedEvent(trial)}); }), ErrorCode::kInvalidArgument);
  }
}

TEST_P(StoreTest, RaisedLimitsAreInTheSpecAndTheExperimentGoesOn) {
  ExperimentSpec spec = SampleSpec();
  spec.options.max_trials = 5;
  spec.options.max_device_hours = 0.5;
  spec.options.random_seed = 7;
  const ExperimentId id = store_.CreateExperiment(spec);
  AddTrial(id, 0, 10);
  Append(id, {StateChangedEvent(ExperimentState::kStopped, "by the user", 0),
              LimitsRaisedEvent({.max_trials = 9, .max_time_s = 600.5, .max_device_hours = {}})});
  Reopen();
  spec.options.max_trials = 9;
  spec.options.max_time_s = 600.5;
  EXPECT_EQ(ToJson(store_.GetSpec(id)), ToJson(spec));
  EXPECT_THAT(store_.Query("SELECT state, reason, ended_at, pick FROM experiments").rows,
              ElementsAre(ElementsAre("active", "", Json(), Json())));
}

TEST_P(StoreTest, TrialMetricsAreInUnitsForPeople) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  AddTrial(id, 0, 10);
  Append(id, {AskedEvent(SampleTrial(1)), ToldEvent(1, {TrialState::kInfeasible, "no memory"})});
  const QueryResult result = store_.Query(
      "SELECT trial, state, zero_stage, micro_batch_size, metric_value, metric_spread,"
      " gflops_per_gpu, samples_per_s, latency_ms, forward_ms, peak_mib, reason FROM "
      "trial_metrics");
  EXPECT_THAT(result.rows, ElementsAre(ElementsAre(0, "succeeded", 2, 4, 10.0, 0.5, 10.0, 10.0,
                                                   800.0, Json(), 512.0, ""),
                                       ElementsAre(1, "infeasible", 2, 4, Json(), Json(), Json(),
                                                   Json(), Json(), Json(), Json(), "no memory")));
}

TEST_P(StoreTest, TrialMetricsHaveTheConfigOfTheBestPoint) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  Append(id, {AskedEvent(SampleTrial(0)), AttemptStartedEvent(0, 0, ""),
              MeasuredEvent(0, 0, SamplePoint(10, 4), std::nullopt),
              MeasuredEvent(0, 0, SamplePoint(30, 3), std::nullopt),
              MeasuredEvent(0, 0, SamplePoint(20, 5), std::nullopt),
              AttemptEndedEvent(0, 0, {TrialState::kSucceeded, ""}, ""),
              ToldEvent(0, {TrialState::kSucceeded, ""}), AskedEvent(SampleTrial(1))});
  Json config = SampleTrial(0).ds_config;
  const Json began = config;
  config["train_micro_batch_size_per_gpu"] = 3;
  config["train_batch_size"] = 6;
  const std::string assignment =
      R"({"/train_micro_batch_size_per_gpu":3,"/zero_optimization/stage":2})";
  EXPECT_THAT(store_.Query("SELECT trial, ds_config, assignment FROM trial_metrics").rows,
              ElementsAre(ElementsAre(0, config.dump(), assignment),
                          ElementsAre(1, began.dump(), Json(SampleTrial(1).assignment).dump())));
  EXPECT_THAT(store_.Query("SELECT ds_config, assignment FROM best_trials").rows,
              ElementsAre(ElementsAre(config.dump(), assignment)));
}

TEST_P(StoreTest, EveryMetricHasItsColumns) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  Measurement all;
  const std::vector<std::string> names = {"FLOPS_per_gpu", "throughput", "latency",    "forward",
                                          "backward",      "step",       "peak_bytes", "loss"};
  for (size_t i = 0; i < names.size(); ++i)
    all[names[i]] = {10.0 + i, 0.1 * i, 3};
  Append(id, {AskedEvent(SampleTrial(0)), AttemptStartedEvent(0, 0, ""),
              MeasuredEvent(0, 0, PointResult{{4, 2}, all}, std::nullopt)});
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_THAT(store_.Query("SELECT " + names[i] + ", " + names[i] + "_spread FROM points").rows,
                ElementsAre(ElementsAre(10.0 + i, 0.1 * i)))
        << names[i];
  }
  EXPECT_THAT(store_.Query("SELECT micro_batch_size, accumulation_steps, point FROM points").rows,
              ElementsAre(ElementsAre(4, 2, 0)));
}

TEST_P(StoreTest, StateChangesAreShown) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  Append(id, {StateChangedEvent(ExperimentState::kStopped, "by the user")});
  const ExperimentRow row = store_.GetExperiment(id);
  EXPECT_EQ(row.state, ExperimentState::kStopped);
  EXPECT_EQ(row.reason, "by the user");
}

TEST_P(StoreTest, LogTailsThatAreNoUtf8AreKeptReadable) {
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  Append(id, {AskedEvent(SampleTrial(0)), AttemptStartedEvent(0, 0, ""),
              AttemptEndedEvent(0, 0, {TrialState::kFailed, "x"}, "before \xff after")});
  EXPECT_EQ(store_.Events(id)[2].payload["log_tail"], "before \uFFFD after");
  EXPECT_EQ(store_.Query("SELECT log_tail FROM attempts").rows[0][0], "before \uFFFD after");
}

TEST_P(StoreTest, RowTablesAreWhatTheLogSays) {
  // The log replayed into a new store gives the same rows.
  const ExperimentId id = store_.CreateExperiment(SampleSpec());
  AddTrial(id, 0, 10, TrialKind::kSubmitted);
  AddTrial(id, 1, 30);
  Append(id,
         {AskedEvent(SampleTrial(2)), SearchEndedEvent("a budget"), AskedEvent(SampleConfirm(3, 1)),
          LimitsRaisedEvent({.max_trials = 60, .max_time_s = {}, .max_device_hours = {}}),
          StateChangedEvent(ExperimentState::kStopped, "", 0)});
  Store copy = Store::InMemory();
  copy.CreateExperiment(SampleSpec());
  copy.Append(1, 0, store_.Events(id));
  for (const char* sql : {"SELECT * FROM trial_metrics", "SELECT * FROM best_trials",
                          "SELECT trial, attempt, state, reason, log_dir FROM attempts",
                          "SELECT trial, attempt, point, measurement FROM points",
                          "SELECT id, state, reason, pick, spec FROM experiments"}) {
    EXPECT_EQ(copy.Query(sql).rows, store_.Query(sql).rows) << sql;
  }
}

}  // namespace
}  // namespace dsat
