// docs/schema.md, docs/dev/schema.md and the comments in the schema name every table and column.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <regex>
#include <string>

#include "base/files.h"
#include "db/schema.h"
#include "db/store.h"
#include "tests/db/store_fixtures.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

constexpr std::array kEventKinds = {
    EventKind::kAsked,       EventKind::kAnswered,     EventKind::kAttemptStarted,
    EventKind::kMeasured,    EventKind::kAttemptEnded, EventKind::kTold,
    EventKind::kSearchEnded, EventKind::kLimitsRaised, EventKind::kStateChanged};

class SchemaTest : public ::testing::Test {
 protected:
  // Tables and views.
  std::vector<std::string> Relations() const {
    std::vector<std::string> names;
    for (const auto& row :
         store_.Query("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')").rows) {
      names.push_back(row[0].get<std::string>());
    }
    return names;
  }
  std::vector<std::string> Columns(const std::string& relation) const {
    std::vector<std::string> names;
    for (const auto& row : store_.Query("PRAGMA table_info(" + relation + ")").rows) {
      names.push_back(row[1].get<std::string>());
    }
    return names;
  }

  const Store store_ = Store::InMemory();
  const std::string docs_ =
      ReadFile(DSAT_SOURCE_DIR "/docs/schema.md") + ReadFile(DSAT_SOURCE_DIR "/docs/dev/schema.md");
};

// The part of the page under the relation's heading.
std::string Section(const std::string& docs, const std::string& relation) {
  const size_t start = docs.find("\n### " + relation + "\n");
  if (start == std::string::npos) return "";
  return docs.substr(start, docs.find("\n##", start + 4) - start);
}

TEST_F(SchemaTest, ThePageNamesEveryTableViewAndColumn) {
  const std::vector<std::string> relations = Relations();
  EXPECT_EQ(relations.size(), 8U);
  for (const std::string& relation : relations) {
    const std::string section = Section(docs_, relation);
    EXPECT_FALSE(section.empty()) << relation;
    for (const std::string& column : Columns(relation)) {
      EXPECT_THAT(section, HasSubstr("| `" + column + "` |")) << relation;
    }
  }
}

TEST_F(SchemaTest, ThePageNamesNoColumnThatIsNotThere) {
  const std::regex row("\\n\\| `([A-Za-z_]+)` \\|");
  for (const std::string& relation : Relations()) {
    const std::string section = Section(docs_, relation);
    const std::vector<std::string> columns = Columns(relation);
    for (std::sregex_iterator it(section.begin(), section.end(), row), end; it != end; ++it) {
      EXPECT_THAT(columns, ::testing::Contains((*it)[1].str())) << relation;
    }
  }
}

TEST_F(SchemaTest, ThePageNamesEveryEventKindAndTheVersion) {
  for (const EventKind kind : kEventKinds) {
    EXPECT_THAT(docs_, HasSubstr("| `" + ToString(kind) + "` |"));
  }
  EXPECT_THAT(docs_, HasSubstr("version " + std::to_string(kSchemaVersion)));
}

TEST_F(SchemaTest, ThePagesQueriesRun) {
  const std::regex fence("```sql\n([^`]+)```");
  int queries = 0;
  for (std::sregex_iterator it(docs_.begin(), docs_.end(), fence), end; it != end; ++it) {
    EXPECT_NO_THROW(store_.Query((*it)[1].str())) << (*it)[1].str();
    ++queries;
  }
  EXPECT_GE(queries, 5);
}

TEST_F(SchemaTest, EveryColumnCarriesItsComment) {
  const std::string schema = kSchemaSql;
  for (const std::string& relation : Relations()) {
    size_t start = schema.find("CREATE TABLE IF NOT EXISTS " + relation + " ");
    if (start == std::string::npos)
      start = schema.find("CREATE VIEW IF NOT EXISTS " + relation + " ");
    ASSERT_NE(start, std::string::npos) << relation;
    const std::string statement = schema.substr(start, schema.find(";\n\n", start) - start);
    for (const std::string& column : Columns(relation)) {
      // The column's name, then a comment on its line or, for a long definition, the next one.
      const std::regex commented("\\b" + column + "\\b[^\\n]*(\\n[^\\n]*)?-- [A-Z0-9a-z']");
      EXPECT_TRUE(std::regex_search(statement, commented)) << relation << "." << column;
    }
  }
}

TEST_F(SchemaTest, ForeignKeysAreEnforcedAndTablesStrict) {
  for (const auto& row : store_.Query("PRAGMA table_list").rows) {
    const std::string name = row[1].get<std::string>();
    if (name.starts_with("sqlite_") || row[2] == "view") continue;
    EXPECT_EQ(row[5], 1) << name << " is not STRICT";
  }
}

TEST(EventTest, KindsAndStatesHaveTextForms) {
  for (const EventKind kind : kEventKinds) {
    EXPECT_EQ(Parse<EventKind>(ToString(kind)), kind);
  }
  for (const ExperimentState state : {ExperimentState::kActive, ExperimentState::kCompleted,
                                      ExperimentState::kFailed, ExperimentState::kStopped}) {
    EXPECT_EQ(Parse<ExperimentState>(ToString(state)), state);
  }
  EXPECT_THAT(
      RefusalOf([] { Parse<EventKind>("eaten"); }),
      testing::AllOf(HasSubstr("\"eaten\""), HasSubstr("asked, answered, attempt_started")));
}

TEST(EventTest, AnAnswerHasAReasonOrATrial) {
  const Answered refused = {{{"/zero_optimization/stage", 1}}, "too large", std::nullopt};
  const Answered equal = {{{"/zero_optimization/stage", 2}}, "", 7};
  for (const Answered& written : {refused, equal}) {
    const Event event = AnsweredEvent(written);
    EXPECT_EQ(event.trial, written.trial.value_or(-1));
    const Answered read = AnsweredOf(event);
    EXPECT_EQ(read.assignment, written.assignment);
    EXPECT_EQ(read.reason, written.reason);
    EXPECT_EQ(read.trial, written.trial);
  }
}

// The end of a profiling trial carries what was predicted.
TEST(EventTest, WhatWasPredictedIsReadAsItWasWritten) {
  const Outcome success{TrialState::kSucceeded, ""};
  EXPECT_FALSE(ToldSpace(ToldEvent(0, success)).has_value());
  SearchSpace space;
  space.exact = true;
  space.stages.push_back({.stage = 2,
                          .approx_max_micro_batch = 34,
                          .state_bytes = 1000,
                          .knobs = {{"/zero_optimization/overlap_comm", {true, false}}}});
  Event told = ToldEvent(0, success, space);
  EXPECT_EQ(ToJson(*ToldSpace(told)), ToJson(space));
  told.payload["space"]["stages"][0]["stage"] = "two";
  EXPECT_EQ(CodeOf([&] { ToldSpace(told); }), ErrorCode::kDataLoss);
}

TEST(EventTest, LossesAreReadAsTheyWereWritten) {
  PointResult point = SamplePoint(100);
  EXPECT_FALSE(MeasuredEvent(3, 0, point, std::nullopt).payload.contains("losses"));
  EXPECT_TRUE(MeasuredPoint(MeasuredEvent(3, 0, point, std::nullopt))->losses.empty());
  point.losses = {4.5, std::nan(""), 0.1};
  point.rank_peak_bytes = {100, 120};
  Event event = MeasuredEvent(3, 0, point, std::nullopt);
  event.payload = Json::parse(event.payload.dump());  // As in a file.
  const PointResult read = *MeasuredPoint(event);
  EXPECT_THAT(read.losses, ElementsAre(4.5, IsNan(), 0.1));
  EXPECT_EQ(read.rank_peak_bytes, point.rank_peak_bytes);
}

// Logs of older versions lack these keys, and so do events that have nothing to say.
TEST(EventTest, KeysThatMayBeAbsentHaveDefaults) {
  const Trial plain = SampleTrial(3);
  EXPECT_EQ(AskedEvent(plain).payload.size(), 3U);
  EXPECT_FALSE(AskedTrial(AskedEvent(plain)).confirms.has_value());
  EXPECT_EQ(AskedTrial(AskedEvent(plain)).give_up_below, 0);
  Trial confirm = SampleConfirm(4, 3);
  confirm.give_up_below = 12.5;
  const Trial read = AskedTrial(AskedEvent(confirm));
  EXPECT_EQ(read.kind, TrialKind::kConfirm);
  EXPECT_EQ(read.confirms, 3);
  EXPECT_EQ(read.give_up_below, 12.5);
  EXPECT_EQ(read.steps, 0);
  Trial soak = SampleTrial(5, TrialKind::kSoak);
  soak.steps = 50;
  EXPECT_EQ(AskedTrial(AskedEvent(soak)).steps, 50);

  const Outcome success{TrialState::kSucceeded, ""};
  EXPECT_EQ(ToldEvent(0, success).payload.size(), 2U);
  EXPECT_EQ(ToldTimes(ToldEvent(0, success)).ended_s, 0);
  const TrialTimes times = ToldTimes(ToldEvent(0, success, std::nullopt, {1.5, 2.25}));
  EXPECT_EQ(times.started_s, 1.5);
  EXPECT_EQ(times.ended_s, 2.25);
  EXPECT_EQ(ToldTimes(ToldEvent(0, success, std::nullopt, {1.5, 2.25, 0.4})).others, 0.4);

  EXPECT_FALSE(PickOf(StateChangedEvent(ExperimentState::kFailed, "x")).has_value());
  EXPECT_EQ(PickOf(StateChangedEvent(ExperimentState::kCompleted, "", 7)), 7);

  const LimitsRaised limits =
      LimitsOf(LimitsRaisedEvent({.max_trials = {}, .max_time_s = 600, .max_device_hours = {}}));
  EXPECT_FALSE(limits.max_trials || limits.max_device_hours);
  EXPECT_EQ(limits.max_time_s, 600);
  SearchOptions was;
  was.max_trials = 7;
  was.max_device_hours = 2;
  was.confirm_rounds = 3;
  SearchOptions options;
  options.confirm_rounds = 9;
  options.max_time_s = 600;
  UndoLimits(LimitsRaisedEvent(limits, was), options);
  EXPECT_EQ(ToJson(options), ToJson(was));
  Event damaged = LimitsRaisedEvent({.max_trials = 7, .max_time_s = {}, .max_device_hours = {}});
  damaged.payload["max_trials"] = "many";
  EXPECT_EQ(CodeOf([&] { LimitsOf(damaged); }), ErrorCode::kDataLoss);
}

TEST(EventTest, ADamagedPayloadIsDataLossNamingTheEvent) {
  Event event = ToldEvent(4, {TrialState::kFailed, "x"});
  event.seq = 17;
  event.payload.erase("state");
  EXPECT_THAT(RefusalOf([&] { OutcomeOf(event); }, ErrorCode::kDataLoss),
              HasSubstr("event 17 (told, trial 4): key 'state' not found"));
  event.payload["state"] = "great";
  EXPECT_EQ(CodeOf([&] { OutcomeOf(event); }), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace dsat
