// Makes and reads databases.
#include "tests/fuzz/database.h"

#include <chrono>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "db/sqlite.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {
namespace {

std::string MakeDatabase() {
  const std::string path = WriteInput("sample.db", "");
  {
    Store store = Store::Open(path, Store::Mode::kCreate);
    ExperimentSpec spec;
    spec.name = "sample";
    spec.method = "random";
    spec.entrypoint = {"builtin"};
    spec.ds_config = {{"train_batch_size", 8}};
    const ExperimentId id = store.CreateExperiment(spec);
    std::vector<Event> events;
    const PointResult point = {{4, 1}, {{"throughput", {10, 0.5, 3}}}, {2.5, 2.25}, {1 << 20}};
    for (TrialId trial = 0; trial < 3; ++trial) {
      Trial asked;
      asked.id = trial;
      asked.kind = trial == 0 ? TrialKind::kProfile : TrialKind::kSearch;
      asked.assignment = {{"/zero_optimization/stage", 2}};
      asked.ds_config = spec.ds_config;
      events.push_back(AskedEvent(asked));
      events.push_back(AttemptStartedEvent(trial, 1, "/tmp/trial"));
      const ModelProfile profile{1000, 1000, 1 << 20, int64_t{1} << 30, 6000, 200};
      events.push_back(MeasuredEvent(trial, 1, trial == 0 ? std::nullopt : std::optional(point),
                                     trial == 0 ? std::optional(profile) : std::nullopt));
      events.push_back(AttemptEndedEvent(trial, 1, {TrialState::kSucceeded, ""}, ""));
      events.push_back(ToldEvent(trial, {TrialState::kSucceeded, ""}));
    }
    events.push_back(AnsweredEvent({{{"/zero_optimization/stage", 3}}, "too large", {}}));
    events.push_back(
        LimitsRaisedEvent({.max_trials = 7, .max_time_s = {}, .max_device_hours = {}}));
    events.push_back(SearchEndedEvent("all were tried"));
    events.push_back(StateChangedEvent(ExperimentState::kCompleted, "", 1));
    store.Append(id, 0, events);
  }
  {
    Database db =
        Database::Open(path, Database::Access::kReadWrite, std::chrono::milliseconds(100));
    db.Execute("PRAGMA journal_mode = DELETE");
  }
  std::string content = ReadFile(path);
  std::filesystem::remove(path);
  return content;
}

// Reads one event as the code that folds them does.
void ReadEvent(const Event& event) {
  switch (event.kind) {
    case EventKind::kAsked:
      AskedTrial(event);
      break;
    case EventKind::kAnswered:
      AnsweredOf(event);
      break;
    case EventKind::kAttemptStarted:
      AttemptOf(event);
      TextOf(event, "log_dir");
      break;
    case EventKind::kMeasured:
      AttemptOf(event);
      MeasuredPoint(event);
      MeasuredProfile(event);
      break;
    case EventKind::kAttemptEnded:
      OutcomeOf(event);
      break;
    case EventKind::kTold:
      OutcomeOf(event);
      ToldSpace(event);
      ToldTimes(event);
      break;
    case EventKind::kSearchEnded:
      TextOf(event, "reason");
      break;
    case EventKind::kLimitsRaised: {
      SearchOptions options;
      UndoLimits(event, options);
      LimitsOf(event);
      break;
    }
    case EventKind::kStateChanged:
      StateOf(event);
      PickOf(event);
      break;
  }
}

template <typename Read>
void Try(const Read& read) {
  try {
    read();
  } catch (const Error&) {
  }
}

}  // namespace

const std::string& SampleDatabase() {
  static const std::string content = MakeDatabase();
  return content;
}

void ReadWholeDatabase(const Store& store) {
  std::vector<ExperimentRow> experiments;
  Try([&] { experiments = store.ListExperiments(); });
  experiments.resize(std::min<size_t>(experiments.size(), 4));
  for (const ExperimentRow& row : experiments) {
    Try([&] { store.GetSpec(row.id); });
    Try([&] { store.Trials(row.id); });
    Try([&] {
      for (const Event& event : store.Events(row.id))
        Try([&event] { ReadEvent(event); });
    });
  }
}

}  // namespace dsat::fuzz
