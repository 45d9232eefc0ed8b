// Stores experiments, trials and the log of events in one SQLite file.
//
// An experiment's state is the fold of its events. The row tables (trials, attempts, points) are
// projections for people and SQL, which are written in the same transaction.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "db/event.h"
#include "db/sqlite.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

struct ExperimentRow {
  ExperimentId id = 0;
  std::string name;
  std::string method;
  ExperimentState state = ExperimentState::kActive;
  std::string reason;
  std::string created_at;  // UTC, ISO 8601.
  std::string ended_at;    // Likewise; "" if its state is active.
  int64_t num_trials = 0;
  std::string metric;
  bool has_runner = false;  // A search runner asks for its trials, not another program.
};

// A row of the view best_trials.
struct BestTrial {
  TrialId trial = 0;
  double value = 0;  // The value of the experiment's metric.
};

// The result of a query: column names and rows of JSON values.
struct QueryResult {
  std::vector<std::string> columns;
  std::vector<std::vector<Json>> rows;
};

// The limits of a query; as good as none by default.
struct QueryLimits {
  std::chrono::milliseconds time = std::chrono::hours(24);
  int64_t num_rows = std::numeric_limits<int64_t>::max();
};

// Not thread-safe. Several processes may open the same file; one writes at a time (SQLite's WAL
// mode).
class Store {
 public:
  enum class Mode { kCreate, kReadWrite, kReadOnly };

  // How long a call waits for another process to finish writing.
  static constexpr std::chrono::milliseconds kBusyTimeout{10'000};

  // Opens a database file; kCreate creates it if it is missing. Throws kNotFound,
  // kPermissionDenied, kDataLoss (not a database, corrupt) or kFailedPrecondition (made by a dsat
  // of another schema version or by another program), naming the file; the file is then unchanged,
  // and no new file is beside it.
  static Store Open(const std::string& path, Mode mode,
                    std::chrono::milliseconds busy_timeout = kBusyTimeout);
  // A database in memory, for tests.
  static Store InMemory();

  // The path given to Open; ":memory:" for InMemory.
  const std::string& path() const { return db_.path(); }

  // Throws as Append.
  ExperimentId CreateExperiment(const ExperimentSpec& spec);
  // All throw kNotFound naming the experiment and those that exist. GetSpec throws
  // kFailedPrecondition if the spec was written by a newer dsat. These and all other functions that
  // read an experiment throw kDataLoss if dsat cannot have written one of its texts.
  ExperimentSpec GetSpec(ExperimentId id) const;
  ExperimentRow GetExperiment(ExperimentId id) const;
  // ExperimentRow::has_runner, in a time that does not grow with the trials. Throws as
  // GetExperiment.
  bool HasRunner(ExperimentId id) const;
  std::vector<ExperimentRow> ListExperiments() const;
  // The best trial of each experiment, or of one only, in which a trial has succeeded. It reads the
  // measurements of all of them, the functions above none.
  std::map<ExperimentId, BestTrial> BestTrials(std::optional<ExperimentId> only = {}) const;
  // The experiment with that number or, if `name_or_id` is not a number, the newest one of that
  // name; of "", the newest one that is no check, if there is one. Throws kNotFound.
  ExperimentId FindExperiment(const std::string& name_or_id) const;

  // The events after `after_seq`, in order.
  std::vector<Event> Events(ExperimentId id, int64_t after_seq = 0) const;

  // Appends in one transaction and updates the row tables. After it has returned, the events
  // survive the death of this process; a power failure may lose the last events, but never earlier
  // ones. `expected_seq` is the last seq the caller has seen: throws kAborted, having written
  // nothing, if another process has appended since. Returns the new last seq. Throws
  // kResourceExhausted if the disk is full, kUnavailable if the database stays locked for longer
  // than the busy time-out, kPermissionDenied if it was opened read-only, kFailedPrecondition if
  // the file was moved or deleted meanwhile, kInvalidArgument if an event cannot follow the log (an
  // attempt of a trial that was never asked for); nothing is written then.
  int64_t Append(ExperimentId id, int64_t expected_seq, std::span<const Event> events);

  // Trials of an experiment from the row tables, by id.
  std::vector<Trial> Trials(ExperimentId id) const;

  // Runs one read-only SQL statement of a user; BLOBs are returned as hexadecimal text. Throws
  // kInvalidArgument with SQLite's message if it is wrong or there is more than one, and
  // kPermissionDenied if it would write or use other files; beyond `limits` kDeadlineExceeded or
  // kResourceExhausted.
  QueryResult Query(const std::string& sql, const QueryLimits& limits = {}) const;

 private:
  explicit Store(Database db) : db_(std::move(db)) {}

  // Updates experiments, trials, attempts and points by `event`. Throws kInvalidArgument if the
  // event contradicts the tables (a trial that was already asked for, an attempt that was not
  // started). REQUIRES: a transaction is open.
  void Project(ExperimentId experiment, const Event& event);
  // Trials of an experiment from the row tables, by id, with the points of their last attempts.
  // Throws kInvalidArgument or Json::exception if Project cannot have written a row.
  std::vector<Trial> ReadTrials(ExperimentId experiment) const;

  Database db_;
};

}  // namespace dsat
