// The log determines an experiment: the trials are the same, whatever happens to the process.
#include "searcher/search/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "db/sqlite.h"
#include "tests/searcher/search/simulated_trials.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

// Everything an experiment leaves in the database, times and launches aside.
Json RowsOf(const Store& store) {
  Json rows = Json::array();
  for (const char* sql :
       {"SELECT id, kind, state, reason, zero_stage, assignment, ds_config FROM trials",
        "SELECT * FROM trial_metrics", "SELECT * FROM best_trials",
        "SELECT state FROM experiments"}) {
    rows.push_back(store.Query(sql).rows);
  }
  return rows;
}

// The same of a search in memory and of the row tables: trial by trial.
void ExpectRowsAreTheSearch(const Store& store, const Experiment& experiment) {
  const std::vector<Trial> rows = store.Trials(experiment.id());
  ASSERT_EQ(rows.size(), experiment.search().trials().size());
  for (const Trial& row : rows) {
    const Trial& trial = experiment.search().trials().at(row.id);
    EXPECT_EQ(row.kind, trial.kind);
    EXPECT_EQ(row.state, trial.state);
    EXPECT_EQ(row.reason, trial.reason);
    EXPECT_EQ(row.assignment, trial.assignment);
    EXPECT_EQ(row.ds_config, trial.ds_config);
    EXPECT_EQ(row.profile.has_value(), trial.profile.has_value());
    ASSERT_EQ(row.points.size(), trial.points.size()) << "trial " << row.id;
    for (size_t i = 0; i < row.points.size(); ++i) {
      EXPECT_EQ(ToJson(row.points[i].measurement), ToJson(trial.points[i].measurement));
      EXPECT_EQ(row.points[i].point.micro_batch_size, trial.points[i].point.micro_batch_size);
    }
  }
  const auto best_trials = store.BestTrials();
  const auto best = best_trials.find(experiment.id());
  EXPECT_EQ(best == best_trials.end() ? -1 : best->second.trial,
            experiment.search().Best().value_or(-1));
}

class ExperimentTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Methods, ExperimentTest,
                         ::testing::Values("random", "grid", "binary", "asha"),
                         [](const auto& method) { return method.param; });

TEST_P(ExperimentTest, RowTablesAgreeWithTheSearch) {
  Store store = Store::InMemory();
  Experiment experiment = Experiment::Create(store, SearchSpec(GetParam()));
  RunToEnd(experiment, 3);
  EXPECT_TRUE(experiment.search().Finished());
  EXPECT_GE(experiment.search().trials().size(), 5U);
  ExpectRowsAreTheSearch(store, experiment);
  ExpectRowsAreTheSearch(store, Experiment::Open(store, 1));
}

TEST_P(ExperimentTest, ASearchKilledAfterEveryEventGoesOnAsIfItHadNotBeen) {
  const ExperimentSpec spec = SearchSpec(GetParam());
  Store whole = Store::InMemory();
  Experiment uninterrupted = Experiment::Create(whole, spec);
  RunToEnd(uninterrupted, 3);
  // Makes the same calls, each on a new experiment that knows only the log.
  Store store = Store::InMemory();
  store.CreateExperiment(spec);
  for (const Event& event : whole.Events(1)) {
    Experiment experiment = Experiment::Open(store, 1);
    const bool was_made_before = std::ssize(store.Events(1)) >= event.seq;
    switch (event.kind) {
      case EventKind::kAnswered:
        if (!was_made_before) experiment.Ask();
        break;
      case EventKind::kAsked:
        if (!was_made_before) {
          ASSERT_TRUE(experiment.Ask().has_value()) << "event " << event.seq;
        }
        break;
      case EventKind::kAttemptStarted:
        experiment.StartAttempt(event.trial, TextOf(event, "log_dir"));
        break;
      case EventKind::kMeasured:
        experiment.RecordMeasured(event.trial, AttemptOf(event), MeasuredPoint(event),
                                  MeasuredProfile(event));
        break;
      case EventKind::kAttemptEnded:
        experiment.EndAttempt(event.trial, AttemptOf(event), OutcomeOf(event), "");
        break;
      case EventKind::kTold:
        experiment.Tell(event.trial, OutcomeOf(event));
        break;
      case EventKind::kSearchEnded:
      case EventKind::kLimitsRaised:
        break;
      case EventKind::kStateChanged:
        experiment.SetState(StateOf(event), "");
        break;
    }
  }
  EXPECT_EQ(RowsOf(store), RowsOf(whole));
}

TEST_P(ExperimentTest, AsksThatGiveNothingLeaveNoTrace) {
  const ExperimentSpec spec = SearchSpec(GetParam());
  Store quiet = Store::InMemory(), pestered = Store::InMemory();
  Experiment a = Experiment::Create(quiet, spec), b = Experiment::Create(pestered, spec);
  RunToEnd(a, 2);
  // As RunToEnd, but asks three more times whenever there is no trial.
  do {
    while (b.search().Running().size() < 2 && b.Ask()) {
    }
    for (int i = 0; b.search().Running().size() < 2 && i < 3; ++i)
      EXPECT_FALSE(b.Ask().has_value());
  } while (RunNext(b));
  EXPECT_EQ(RowsOf(pestered), RowsOf(quiet));
  EXPECT_EQ(pestered.Events(1).size(), quiet.Events(1).size());
  ExpectRowsAreTheSearch(pestered, Experiment::Open(pestered, 1));
}

TEST_P(ExperimentTest, TwoProcessesAtOneExperimentSeeTheSameSearch) {
  const TempFolder folder;
  const std::string path = folder / "dsat.db";
  Store first = Store::Open(path, Store::Mode::kCreate);
  Store second = Store::Open(path, Store::Mode::kReadWrite);
  Experiment a = Experiment::Create(first, SearchSpec(GetParam(), 8));
  Experiment b = Experiment::Open(second, a.id());
  // Each one asks, and tells the result of the other one's trial.
  for (bool turn = false;; turn = !turn) {
    Experiment& asks = turn ? a : b;
    Experiment& tells = turn ? b : a;
    const std::optional<Trial> trial = asks.Ask();
    if (!trial) break;
    const Simulated result = Simulate(*trial);
    tells.TellExternal(trial->id, result.outcome, result.points, result.profile);
  }
  EXPECT_GE(first.Trials(1).size(), 5U);
  a.SetState(ExperimentState::kCompleted, "");
  b.SetState(ExperimentState::kCompleted, "");  // The same again does nothing.
  ExpectRowsAreTheSearch(first, a);
  ExpectRowsAreTheSearch(second, b);
}

TEST(ExperimentProcessTest, ConcurrentProcessesNeitherLoseNorDoubleATrial) {
  const TempFolder folder;
  const std::string path = folder / "dsat.db";
  ExperimentSpec spec = SearchSpec("grid", 12);
  spec.options.max_concurrent_trials = 16;
  spec.profile = SampleProfile();
  {
    Store store = Store::Open(path, Store::Mode::kCreate);
    Experiment::Create(store, spec);
  }
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(Fork([&] {
      Store store = Store::Open(path, Store::Mode::kReadWrite);
      Experiment experiment = Experiment::Open(store, 1);
      int num_asked = 0;
      while (const std::optional<Trial> trial = experiment.Ask()) {
        ++num_asked;
        const Simulated result = Simulate(*trial);
        experiment.TellExternal(trial->id, result.outcome, result.points, result.profile);
      }
      return num_asked;
    }));
  }
  int num_asked = 0;
  for (const pid_t child : children)
    num_asked += WaitFor(child);
  Store store = Store::Open(path, Store::Mode::kReadOnly);
  const Experiment experiment = Experiment::Open(store, 1);
  EXPECT_EQ(static_cast<size_t>(num_asked), experiment.search().trials().size());
  EXPECT_TRUE(experiment.search().Running().empty());
  ExpectRowsAreTheSearch(store, experiment);
}

TEST(ExperimentReplayTest, AnotherTrialThanRecordedIsDataLossNamingTheDifference) {
  const ExperimentSpec spec = SearchSpec("random");
  Store whole = Store::InMemory();
  Experiment experiment = Experiment::Create(whole, spec);
  RunToEnd(experiment, 1);
  std::vector<Event> log = whole.Events(1);
  for (Event& event : log) {
    if (event.kind != EventKind::kAsked || event.trial != 2) continue;
    event.payload["ds_config"]["zero_optimization"]["stage"] = 9;
  }
  Store store = Logged(spec, log);
  EXPECT_THAT(RefusalOf([&] { Experiment::Open(store, 1); }, ErrorCode::kDataLoss),
              testing::AllOf(HasSubstr("trial 2"), HasSubstr("/zero_optimization/stage"),
                             HasSubstr("recorded 9")));
}

TEST(ExperimentReplayTest, ATrialTooManyIsDataLoss) {
  const ExperimentSpec spec = SearchSpec("random");
  Store store = Store::InMemory();
  store.CreateExperiment(spec);
  Trial profile = *Search(spec).Ask();
  Trial more = profile;
  more.id = 1;
  store.Append(1, 0, std::array{AskedEvent(profile), AskedEvent(more)});
  EXPECT_THAT(RefusalOf([&] { Experiment::Open(store, 1); }, ErrorCode::kDataLoss),
              HasSubstr("trial 1"));
}

class OneTrialTest : public ::testing::Test {
 protected:
  OneTrialTest() : experiment_(Make()) {}

  Experiment Make() {
    ExperimentSpec spec = SearchSpec("random");
    spec.profile = SampleProfile();  // No profiling trial.
    return Experiment::Create(store_, spec);
  }

  Store store_ = Store::InMemory();
  Experiment experiment_;
  const Outcome success_{TrialState::kSucceeded, ""};
};

TEST_F(OneTrialTest, TheTellTakesThePointsOfTheLastAttempt) {
  experiment_.Ask();
  EXPECT_EQ(experiment_.StartAttempt(0, "/logs"), 0);
  experiment_.RecordMeasured(0, 0, SamplePoint(99), std::nullopt);
  experiment_.EndAttempt(0, 0, {TrialState::kFailed, "crash"}, "tail");
  EXPECT_EQ(experiment_.StartAttempt(0, "/logs"), 1);
  experiment_.RecordMeasured(0, 1, SamplePoint(10), std::nullopt);
  experiment_.EndAttempt(0, 1, success_, "");
  EXPECT_EQ(experiment_.NumAttempts(0), 2);
  ASSERT_EQ(experiment_.Attempts(0).size(), 2U);
  EXPECT_EQ(experiment_.Attempts(0)[0].end->reason, "crash");
  experiment_.Tell(0, success_);
  EXPECT_EQ(MetricValue(experiment_.search().trials().at(0), "throughput"), 10);
  ExpectRowsAreTheSearch(store_, experiment_);
}

TEST_F(OneTrialTest, WhatIsHeldBackIsAppendedTogether) {
  experiment_.HoldBack(true);
  experiment_.Ask();
  experiment_.StartAttempt(0, "/logs");
  experiment_.RecordMeasured(0, 0, SamplePoint(10), std::nullopt);
  EXPECT_TRUE(store_.Events(1).empty());
  experiment_.Flush();
  EXPECT_EQ(store_.Events(1).size(), 3U);
  experiment_.EndAttempt(0, 0, success_, "");
  experiment_.Tell(0, success_);
  EXPECT_EQ(MetricValue(experiment_.search().trials().at(0), "throughput"), 10);
  EXPECT_EQ(store_.Events(1).size(), 3U);
  experiment_.HoldBack(false);
  EXPECT_EQ(store_.Events(1).size(), 5U);
  ExpectRowsAreTheSearch(store_, experiment_);
}

TEST_F(OneTrialTest, WhatIsHeldBackIsRefusedAfterAnothersEvents) {
  Experiment other = Experiment::Open(store_, 1);
  experiment_.HoldBack(true);
  experiment_.Ask();
  other.Ask();
  EXPECT_EQ(CodeOf([&] { experiment_.Flush(); }), ErrorCode::kAborted);
  EXPECT_EQ(store_.Events(1).size(), 1U);
}

TEST_F(OneTrialTest, AnAttemptThatWasCutOffIsEndedByTheNext) {
  experiment_.Ask();
  experiment_.StartAttempt(0, "");
  Experiment resumed = Experiment::Open(store_, 1);
  EXPECT_FALSE(resumed.Attempts(0)[0].end.has_value());
  EXPECT_EQ(resumed.StartAttempt(0, ""), 1);
  EXPECT_EQ(resumed.Attempts(0)[0].end->state, TrialState::kStopped);
  EXPECT_EQ(store_.Query("SELECT state FROM attempts ORDER BY attempt").rows,
            (std::vector<std::vector<Json>>{{"stopped"}, {"running"}}));
}

TEST_F(OneTrialTest, OnlyTheLastOpenAttemptTakesMeasurements) {
  experiment_.Ask();
  EXPECT_EQ(CodeOf([&] { experiment_.RecordMeasured(0, 0, SamplePoint(1), {}); }),
            ErrorCode::kFailedPrecondition);
  experiment_.StartAttempt(0, "");
  EXPECT_EQ(CodeOf([&] { experiment_.RecordMeasured(0, 1, SamplePoint(1), {}); }),
            ErrorCode::kFailedPrecondition);
  experiment_.EndAttempt(0, 0, {TrialState::kFailed, "x"}, "");
  EXPECT_EQ(CodeOf([&] { experiment_.RecordMeasured(0, 0, SamplePoint(1), {}); }),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf([&] { experiment_.EndAttempt(0, 0, success_, ""); }),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(store_.Events(1).size(), 3U);
}

TEST_F(OneTrialTest, MeasurementsThatAreNoNumbersAreRefused) {
  experiment_.Ask();
  experiment_.StartAttempt(0, "");
  const size_t before = store_.Events(1).size();
  for (const double value : {std::nan(""), -1.0, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(CodeOf([&] {
                experiment_.RecordMeasured(
                    0, 0, PointResult{{1, 1}, {{"throughput", {value, 0, 1}}}}, {});
              }),
              ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(CodeOf([&] { experiment_.RecordMeasured(0, 0, {}, ModelProfile{}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_.Events(1).size(), before);
}

TEST_F(OneTrialTest, TellsOfTrialsThatDoNotRunAreRefused) {
  EXPECT_EQ(CodeOf([&] { experiment_.Tell(0, success_); }), ErrorCode::kNotFound);
  experiment_.Ask();
  EXPECT_EQ(CodeOf([&] {
              experiment_.Tell(0, {TrialState::kRunning, ""});
            }),
            ErrorCode::kInvalidArgument);
  experiment_.Tell(0, {TrialState::kInfeasible, "out of memory"});
  EXPECT_THAT(RefusalOf(
                  [&] {
                    experiment_.Tell(0, {TrialState::kFailed, "x"});
                  },
                  ErrorCode::kFailedPrecondition),
              HasSubstr("infeasible"));
  EXPECT_EQ(CodeOf([&] { experiment_.StartAttempt(0, ""); }), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(store_.Events(1).size(), 2U);
}

TEST_F(OneTrialTest, ASuccessWithoutTheMetricIsAFailureAndAnErrorToAnExternalTeller) {
  experiment_.Ask();
  EXPECT_THAT(RefusalOf([&] { experiment_.TellExternal(0, success_, {}, {}); }),
              HasSubstr("throughput"));
  EXPECT_EQ(store_.Events(1).size(), 1U);
  experiment_.Tell(0, success_);
  EXPECT_EQ(experiment_.search().trials().at(0).state, TrialState::kFailed);
  EXPECT_THAT(experiment_.search().trials().at(0).reason, HasSubstr("throughput"));
  ExpectRowsAreTheSearch(store_, experiment_);
}

TEST_F(OneTrialTest, AnExternalTellIsAnAttemptOfItsOwn) {
  experiment_.Ask();
  experiment_.StartAttempt(0, "/logs");  // Its runner has died.
  experiment_.TellExternal(0, success_, {SamplePoint(42)}, {});
  EXPECT_EQ(experiment_.NumAttempts(0), 2);
  EXPECT_EQ(MetricValue(experiment_.search().trials().at(0), "throughput"), 42);
  ExpectRowsAreTheSearch(store_, Experiment::Open(store_, 1));
}

TEST_F(OneTrialTest, AnEndedExperimentAsksForNothing) {
  experiment_.Ask();
  experiment_.SetState(ExperimentState::kStopped, "enough");
  EXPECT_FALSE(experiment_.Ask().has_value());
  EXPECT_EQ(Experiment::Open(store_, 1).state(), ExperimentState::kStopped);
  EXPECT_EQ(Experiment::Open(store_, 1).reason(), "enough");
  EXPECT_EQ(CodeOf([&] { experiment_.SetState(ExperimentState::kCompleted, ""); }),
            ErrorCode::kFailedPrecondition);
  experiment_.Tell(0, {TrialState::kStopped, "enough"});  // A running trial may end.
}

TEST(ExperimentCreateTest, ASpecThatContradictsItselfIsNotRecorded) {
  Store store = Store::InMemory();
  EXPECT_THAT(RefusalOf([&] { Experiment::Create(store, SearchSpec("guess")); }),
              HasSubstr("guess"));
  EXPECT_TRUE(store.ListExperiments().empty());
}

TEST(ExperimentCreateTest, UnknownExperimentsAreNotFound) {
  Store store = Store::InMemory();
  EXPECT_EQ(CodeOf([&] { Experiment::Open(store, 3); }), ErrorCode::kNotFound);
}

// A call that the database refuses leaves the experiment as it was, and can be made again.
TEST(ExperimentFaultTest, ALockedDatabaseDelaysButDoesNotHarm) {
  const TempFolder folder;
  const std::string path = folder / "dsat.db";
  constexpr std::chrono::milliseconds kShort{30};
  Store store = Store::Open(path, Store::Mode::kCreate, kShort);
  Experiment experiment = Experiment::Create(store, SearchSpec("random"));
  Database other = Database::Open(path, Database::Access::kReadWrite, kShort);
  {
    const Transaction lock(other);
    EXPECT_EQ(CodeOf([&] { experiment.Ask(); }), ErrorCode::kUnavailable);
    EXPECT_TRUE(experiment.search().trials().empty());  // Not asked for in memory either.
  }
  ASSERT_TRUE(experiment.Ask().has_value());
  {
    const Transaction lock(other);
    EXPECT_EQ(CodeOf([&] {
                experiment.Tell(0, {TrialState::kFailed, "x"});
              }),
              ErrorCode::kUnavailable);
    EXPECT_EQ(experiment.search().Running().size(), 1U);
  }
  experiment.Tell(0, {TrialState::kFailed, "x"});
  ExpectRowsAreTheSearch(store, Experiment::Open(store, 1));
}

TEST(ExperimentConditionsTest, ASearchWithConditionsReplays) {
  for (const char* method : {"random", "grid", "auto"}) {
    Store store = Store::InMemory();
    ExperimentSpec spec = SearchSpec(method);
    spec.where = {
        "/zero_optimization/reduce_bucket_size <= /zero_optimization/allgather_bucket_size",
        "/zero_optimization/overlap_comm != true"};
    Experiment experiment = Experiment::Create(store, spec);
    RunToEnd(experiment, 2);
    EXPECT_GT(experiment.search().trials().size(), 4U) << method;
    ExpectRowsAreTheSearch(store, Experiment::Open(store, 1));
  }
}

TEST(ExperimentConditionsTest, ConditionsThatLeaveNothingFailTheExperimentByName) {
  Store store = Store::InMemory();
  ExperimentSpec spec = SearchSpec("grid");
  spec.where = {"/zero_optimization/reduce_bucket_size < 5"};
  Experiment experiment = Experiment::Create(store, spec);
  RunToEnd(experiment, 1);
  EXPECT_EQ(experiment.search().trials().size(), 1U);
  EXPECT_THAT(experiment.search().FailureReason(), testing::HasSubstr(spec.where[0]));
  EXPECT_EQ(Experiment::Open(store, 1).search().FailureReason(),
            experiment.search().FailureReason());
}

}  // namespace
}  // namespace dsat
