// Experiments, trials and the order of events, in one SQLite file.
//
// The log is the truth: an experiment's state is the fold of its events. The row tables (trials,
// attempts, points) are projections for people and SQL, written in the same transaction.
#ifndef DSAT_DB_STORE_H_
#define DSAT_DB_STORE_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

enum class EventKind {
  kAsked,           // A trial was created. payload: kind, assignment, ds_config
  kAttemptStarted,  // A launch began. payload: attempt, log_dir
  kMeasured,        // A point was measured. payload: attempt, point, measurement, profile?
  kAttemptEnded,    // A launch ended. payload: attempt, state, reason, log_tail
  kTold,            // The trial's end, as the method is told. payload: state, reason
  kStateChanged,    // The experiment's state. payload: state, reason; trial is -1
};

struct Event {
  int64_t seq = 0;  // 1, 2, 3 ... within the experiment; given by Append.
  EventKind kind = EventKind::kAsked;
  TrialId trial = -1;
  Json payload = Json::object();
};

enum class ExperimentState { kActive, kCompleted, kFailed, kStopped };

struct ExperimentRow {
  ExperimentId id = 0;
  std::string name;
  std::string method;
  ExperimentState state = ExperimentState::kActive;
  std::string reason;
  std::string created_at;  // UTC, ISO 8601.
  int64_t num_trials = 0;
  int64_t best_trial = -1;  // -1 if none has succeeded.
  std::string metric;
  double best_value = 0;
};

// A result of a user's query: column names and rows of JSON values.
struct QueryResult {
  std::vector<std::string> columns;
  std::vector<std::vector<Json>> rows;
};

// Not thread-safe. Several processes may have one file open: one writes at a time (SQLite's WAL mode).
class Store {
 public:
  enum class Mode { kCreate, kReadWrite, kReadOnly };

  // Opens a database file; kCreate makes it if it is missing. Throws kNotFound, kPermissionDenied,
  // kDataLoss (not a database, corrupt) or kFailedPrecondition (made by another version, or another
  // program), naming the file; the file is then as it was.
  static Store Open(const std::string& path, Mode mode);
  // A database in memory, for tests.
  static Store InMemory();

  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  const std::string& path() const;

  ExperimentId CreateExperiment(const ExperimentSpec& spec);
  // Throw kNotFound naming the experiment and those that exist.
  ExperimentSpec GetSpec(ExperimentId id) const;
  ExperimentRow GetExperiment(ExperimentId id) const;
  std::vector<ExperimentRow> ListExperiments() const;
  // The experiment with that number or, if `name_or_id` is no number, the newest with that name.
  ExperimentId FindExperiment(const std::string& name_or_id) const;

  // The log after `after_seq`, in order.
  std::vector<Event> Events(ExperimentId id, int64_t after_seq = 0) const;

  // Appends in one transaction, durably, and updates the row tables. `expected_seq` is the last seq
  // the caller has seen: throws kAborted, having written nothing, if another process has appended
  // since. Returns the new last seq. Throws kResourceExhausted if the disk is full and kUnavailable
  // if the database stays locked for longer than 10 s; nothing is written then.
  int64_t Append(ExperimentId id, int64_t expected_seq, std::span<const Event> events);

  // Trials of an experiment from the row tables, by id.
  std::vector<Trial> Trials(ExperimentId id) const;

  // Runs one read-only SQL statement of a user's. Throws kInvalidArgument with SQLite's message if it
  // is wrong, and kPermissionDenied if it would write.
  QueryResult Query(const std::string& sql) const;

 private:
  struct Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

std::string ToString(EventKind kind);
std::string ToString(ExperimentState state);

}  // namespace dsat

#endif  // DSAT_DB_STORE_H_
