// Updates the row tables from the events of the log.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "db/store.h"

namespace dsat {
namespace {

// Times come from SQLite's clock. No decision depends on them.
#define DSAT_SQL_NOW "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"

// Throws unless an update has changed exactly one row.
void RequireRow(int64_t changes, const Event& event, const char* missing) {
  if (changes == 1) return;
  Throw(ErrorCode::kInvalidArgument, "event {} of trial {}: {}", ToString(event.kind), event.trial,
        missing);
}

void ProjectAsked(const Database& db, ExperimentId experiment, const Event& event) {
  const Trial trial = AskedTrial(event);
  Run(db,
      "INSERT INTO trials (experiment, id, kind, state, reason, zero_stage, assignment, ds_config,"
      " asked_at, confirms) VALUES (?, ?, ?, 'running', '', ?, ?, ?, " DSAT_SQL_NOW ", ?)",
      experiment, trial.id, ToString(trial.kind), ZeroStage(trial.ds_config),
      event.payload.at("assignment").dump(), trial.ds_config.dump(), trial.confirms);
}

void ProjectAttemptStarted(const Database& db, ExperimentId experiment, const Event& event) {
  Run(db,
      "INSERT INTO attempts (experiment, trial, attempt, state, reason, log_dir, log_tail,"
      " started_at) VALUES (?, ?, ?, 'running', '', ?, '', " DSAT_SQL_NOW ")",
      experiment, event.trial, AttemptOf(event), TextOf(event, "log_dir"));
}

// The metrics that have columns in `points`, in the order of the columns.
constexpr std::array kMetricColumns = {"FLOPS_per_gpu", "throughput", "latency",    "forward",
                                       "backward",      "step",       "peak_bytes", "loss"};

// The SQL that inserts a point. Its parameters are experiment, trial, attempt, the two batch sizes,
// and the measurement, losses and rank_peak_bytes of the event.
std::string InsertPointSql() {
  std::string metrics;
  for (const char* metric : kMetricColumns)
    metrics += fmt::format("?6 ->> '$.{0}.value', ?6 ->> '$.{0}.spread', ", metric);
  return fmt::format("INSERT INTO points SELECT ?1, ?2, ?3, count(*), ?4, ?5, {}?6, " DSAT_SQL_NOW
                     ", ?7, ?8 FROM points WHERE experiment = ?1 AND trial = ?2 AND attempt = ?3",
                     metrics);
}

void ProjectMeasured(const Database& db, ExperimentId experiment, const Event& event) {
  const int64_t attempt = AttemptOf(event);
  if (const auto result = MeasuredPoint(event)) {
    static const std::string kInsertPoint = InsertPointSql();
    const auto text_at = [&](const char* key) {
      const auto found = event.payload.find(key);
      return found == event.payload.end() ? std::nullopt : std::optional(found->dump());
    };
    Run(db, kInsertPoint, experiment, event.trial, attempt, result->point.micro_batch_size,
        result->point.accumulation_steps, text_at("measurement"), text_at("losses"),
        text_at("rank_peak_bytes"));
  }
  if (const auto profile = MeasuredProfile(event)) {
    const int64_t changes = Run(
        db, "UPDATE attempts SET profile = ? WHERE experiment = ? AND trial = ? AND attempt = ?",
        ToJson(*profile).dump(), experiment, event.trial, attempt);
    RequireRow(changes, event, "no such attempt");
  }
}

void ProjectAttemptEnded(const Database& db, ExperimentId experiment, const Event& event) {
  const Outcome outcome = OutcomeOf(event);
  const int64_t changes =
      Run(db,
          "UPDATE attempts SET state = ?, reason = ?, log_tail = ?, ended_at = " DSAT_SQL_NOW
          " WHERE experiment = ? AND trial = ? AND attempt = ? AND state = 'running'",
          ToString(outcome.state), outcome.reason, TextOf(event, "log_tail"), experiment,
          event.trial, AttemptOf(event));
  RequireRow(changes, event, "no such attempt is running");
}

void ProjectTold(const Database& db, ExperimentId experiment, const Event& event) {
  const Outcome outcome = OutcomeOf(event);
  const std::string state = ToString(outcome.state);
  const int64_t changes = Run(db,
                              "UPDATE trials SET state = ?, reason = ?, ended_at = " DSAT_SQL_NOW
                              " WHERE experiment = ? AND id = ? AND state = 'running'",
                              state, outcome.reason, experiment, event.trial);
  RequireRow(changes, event, "no such trial is running");
  // If a trial is told while its attempt is running (canceled), the attempt ends, too.
  Run(db,
      "UPDATE attempts SET state = ?, reason = ?, ended_at = " DSAT_SQL_NOW
      " WHERE experiment = ? AND trial = ? AND state = 'running'",
      state, outcome.reason, experiment, event.trial);
}

void ProjectStateChanged(const Database& db, ExperimentId experiment, const Event& event) {
  Run(db,
      "UPDATE experiments SET state = ?, reason = ?, pick = ?, ended_at = " DSAT_SQL_NOW
      " WHERE id = ?",
      ToString(StateOf(event)), TextOf(event, "reason"), PickOf(event), experiment);
}

void ProjectLimitsRaised(const Database& db, ExperimentId experiment, const Event& event) {
  Json options = LimitsRaisedEvent(LimitsOf(event)).payload;
  options.erase("was");
  Run(db,
      "UPDATE experiments SET state = 'active', reason = '', ended_at = NULL, pick = NULL,"
      " spec = json_patch(spec, ?) WHERE id = ?",
      Json{{"options", options}}.dump(), experiment);
}

}  // namespace

void Store::Project(ExperimentId experiment, const Event& event) {
  switch (event.kind) {
    case EventKind::kAsked:
      return ProjectAsked(db_, experiment, event);
    case EventKind::kAttemptStarted:
      return ProjectAttemptStarted(db_, experiment, event);
    case EventKind::kMeasured:
      return ProjectMeasured(db_, experiment, event);
    case EventKind::kAttemptEnded:
      return ProjectAttemptEnded(db_, experiment, event);
    case EventKind::kTold:
      return ProjectTold(db_, experiment, event);
    case EventKind::kAnswered:
    case EventKind::kSearchEnded:
      return;  // No row says what the method is asked for.
    case EventKind::kLimitsRaised:
      return ProjectLimitsRaised(db_, experiment, event);
    case EventKind::kStateChanged:
      return ProjectStateChanged(db_, experiment, event);
  }
}

std::vector<Trial> Store::ReadTrials(ExperimentId experiment) const {
  std::vector<Trial> trials;
  Statement rows(db_,
                 "SELECT t.id, t.kind, t.state, t.reason, t.assignment, t.ds_config, t.confirms,"
                 " a.profile"
                 " FROM trials AS t LEFT JOIN attempts AS a"
                 " ON a.experiment = t.experiment AND a.trial = t.id AND a.attempt ="
                 " (SELECT max(attempt) FROM attempts WHERE experiment = t.experiment"
                 "  AND trial = t.id)"
                 " WHERE t.experiment = ? ORDER BY t.id",
                 experiment);
  while (rows.Step()) {
    Trial trial;
    trial.id = rows.Int(0);
    trial.kind = Parse<TrialKind>(rows.Text(1));
    trial.state = Parse<TrialState>(rows.Text(2));
    trial.reason = rows.Text(3);
    trial.assignment = AssignmentFromJson(Json::parse(rows.Text(4)));
    trial.ds_config = Json::parse(rows.Text(5));
    if (!rows.IsNull(6)) trial.confirms = rows.Int(6);
    if (!rows.IsNull(7)) trial.profile = ProfileFromJson(Json::parse(rows.Text(7)), "profile");
    trials.push_back(std::move(trial));
  }
  Statement points(db_,
                   "SELECT trial, micro_batch_size, accumulation_steps, measurement,"
                   " losses, rank_peak_bytes FROM points AS p WHERE experiment = ?1 AND attempt ="
                   " (SELECT max(attempt) FROM attempts WHERE experiment = ?1"
                   "  AND trial = p.trial) ORDER BY trial, point",
                   experiment);
  auto trial = trials.begin();  // Both results are in the order of the trials.
  while (points.Step()) {
    trial = std::ranges::find(trial, trials.end(), points.Int(0), &Trial::id);
    if (trial == trials.end())
      Throw(ErrorCode::kInvalidArgument, "a point is of trial {}, which does not exist",
            points.Int(0));
    trial->points.push_back(
        {{points.Int(1), points.Int(2)},
         MeasurementFromJson(Json::parse(points.Text(3)), "measurement"),
         points.IsNull(4) ? std::vector<double>() : LossesFromJson(Json::parse(points.Text(4))),
         points.IsNull(5) ? std::vector<int64_t>() : IntegersIn(Json::parse(points.Text(5)))});
  }
  return trials;
}

}  // namespace dsat
