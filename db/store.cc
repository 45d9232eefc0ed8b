// Stores experiments, trials and the log of events in one SQLite file.
#include "db/store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"
#include "db/file_check.h"
#include "db/projections.h"
#include "db/schema.h"
#include "db/sqlite.h"

namespace dsat {
namespace {

// A -wal file of 16 MiB: a checkpoint, which waits for the disk, about every 1000 events.
constexpr int kCheckpointPages = 4000;

int64_t QueryInt(const Database& db, std::string_view sql) {
  Statement statement(db, sql);
  statement.Step();
  return statement.Int(0);
}

// Creates the tables if there are none. If several processes do so at once, the first one does it.
void CreateSchema(Database& db) {
  Transaction transaction(db);
  if (QueryInt(db, "SELECT count(*) FROM sqlite_schema") == 0) {
    db.Execute(kSchemaSql);
    db.Execute(fmt::format("PRAGMA application_id = {}", kApplicationId));
    db.Execute(fmt::format("PRAGMA user_version = {}", kSchemaVersion));
  }
  transaction.Commit();
}

void Configure(Database& db) {
  db.Execute("PRAGMA foreign_keys = ON");
  // In WAL mode a commit has been handed to the kernel, so that a killed process loses nothing.
  // Only a checkpoint waits for the disk: a power failure may lose the last commits, but leaves a
  // consistent earlier state.
  db.Execute("PRAGMA synchronous = NORMAL");
  db.Execute(fmt::format("PRAGMA wal_autocheckpoint = {}", kCheckpointPages));
}

Database OpenWritable(const std::string& path, bool create,
                      std::chrono::milliseconds busy_timeout) {
  if (!MayWrite(FolderOf(path))) {
    Throw(ErrorCode::kPermissionDenied,
          "{}: the folder {} is not writable, but SQLite must create files beside the database",
          path, FolderOf(path));
  }
  Database db = Database::Open(
      path, create ? Database::Access::kCreate : Database::Access::kReadWrite, busy_timeout);
  if (db.ReadOnly()) {
    Throw(ErrorCode::kPermissionDenied, "{}: the file is read-only; make it writable", path);
  }
  Configure(db);
  if (create) CreateSchema(db);
  db.Execute("PRAGMA journal_mode = WAL");
  return db;
}

Database OpenReadOnly(const std::string& path, std::chrono::milliseconds busy_timeout) {
  if (MayWrite(path) && MayWrite(FolderOf(path))) {
    // Opened for writing, the last connection that closes removes the -wal and -shm files.
    Database db = Database::Open(path, Database::Access::kReadWrite, busy_timeout);
    db.Execute("PRAGMA query_only = ON");
    return db;
  }
  // Without write permission, SQLite cannot take part in the locking of WAL mode. If there is no
  // -wal file, no process writes, and the file can be read without locks.
  const bool in_use = access((path + "-wal").c_str(), F_OK) == 0;
  return Database::Open(path, in_use ? Database::Access::kReadOnly : Database::Access::kImmutable,
                        busy_timeout);
}

// Throws if the file at `path` cannot be opened in this mode.
void CheckContent(const std::string& path, FileContent content, Store::Mode mode) {
  if (content == FileContent::kDatabase) return;
  if (mode == Store::Mode::kCreate) {
    struct stat status {};
    if (stat(FolderOf(path).c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
    Throw(ErrorCode::kNotFound, "{}: there is no folder {}; create it first", path, FolderOf(path));
  }
  if (content == FileContent::kMissing) {
    Throw(ErrorCode::kNotFound, "{}: no such database; name another file with --db", path);
  }
  Throw(ErrorCode::kDataLoss, "{}: the file is empty, not a database; name another file with --db",
        path);
}

constexpr std::string_view kSelectExperiments =
    "SELECT e.id, e.name, e.method, e.state, e.reason, e.created_at, e.metric,"
    " (SELECT count(*) FROM trials AS t WHERE t.experiment = e.id) FROM experiments AS e";

ExperimentRow ReadExperimentRow(const Statement& row) {
  ExperimentRow experiment;
  experiment.id = row.Int(0);
  experiment.name = row.Text(1);
  experiment.method = row.Text(2);
  experiment.state = ParseExperimentState(row.Text(3));
  experiment.reason = row.Text(4);
  experiment.created_at = row.Text(5);
  experiment.metric = row.Text(6);
  experiment.num_trials = row.Int(7);
  return experiment;
}

std::string SpecText(const ExperimentSpec& spec) {
  try {
    return ToJson(spec).dump();
  } catch (const Json::exception&) {
    Throw(ErrorCode::kInvalidArgument, "{}: a name or a path in it is not UTF-8", spec.config_path);
  }
}

void InsertEvent(const Database& db, ExperimentId id, int64_t seq, const Event& event) {
  Run(db,
      "INSERT INTO events (experiment, seq, kind, trial, payload, at)"
      " VALUES (?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
      id, seq, ToString(event.kind), event.trial < 0 ? std::nullopt : std::optional(event.trial),
      event.payload.dump());
}

[[noreturn]] void ThrowDamaged(const std::string& path, ExperimentId id, const std::string& why) {
  Throw(ErrorCode::kDataLoss,
        "{}: experiment {} cannot be read; it was damaged, or changed by another program: {}", path,
        id, why);
}

// Runs `read`, which takes texts of the tables apart.
template <typename Read>
void ReadTexts(const std::string& path, ExperimentId id, const Read& read) {
  try {
    read();
  } catch (const Json::exception& error) {
    ThrowDamaged(path, id, JsonMessage(error));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    ThrowDamaged(path, id, error.what());
  }
}

}  // namespace

struct Store::Impl {
  Database db;

  // Throws if the file has lost its name: a write to it would be lost with this process.
  void CheckPlace() const {
    if (!db.Moved()) return;
    Throw(ErrorCode::kFailedPrecondition,
          "{}: the database was moved, replaced or deleted while this process had it open; move it "
          "back beside its -wal file",
          db.path());
  }

  int64_t LastSeq(ExperimentId id) const {
    Statement last(db, "SELECT coalesce(max(seq), 0) FROM events WHERE experiment = ?", id);
    last.Step();
    return last.Int(0);
  }

  // "2 (gpt2), 3 (llama)" or "none".
  std::string KnownExperiments() const {
    constexpr int kMaxNamed = 10;
    std::string known;
    Statement rows(db, "SELECT id, name FROM experiments ORDER BY id DESC LIMIT ?", kMaxNamed + 1);
    for (int i = 0; rows.Step(); ++i) {
      known += known.empty() ? "" : ", ";
      if (i == kMaxNamed) return known + "...";
      known += fmt::format("{} ({})", rows.Int(0), rows.Text(1));
    }
    return known.empty() ? "none" : known;
  }

  [[noreturn]] void ThrowUnknown(const std::string& name_or_id) const {
    Throw(ErrorCode::kNotFound, "{}: no experiment {}; there are: {}", db.path(), name_or_id,
          KnownExperiments());
  }
};

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

Store Store::Open(const std::string& given_path, Mode mode,
                  std::chrono::milliseconds busy_timeout) {
  // SQLite's log is beside the file that a symbolic link leads to.
  const bool is_link =
      std::filesystem::is_symlink(given_path) && std::filesystem::exists(given_path);
  const std::string path = is_link ? std::filesystem::canonical(given_path).string() : given_path;
  const FileContent content = CheckDatabaseFile(path, busy_timeout);
  CheckContent(path, content, mode);
  return Store(std::make_unique<Impl>(
      Impl{mode == Mode::kReadOnly ? OpenReadOnly(path, busy_timeout)
                                   : OpenWritable(path, mode == Mode::kCreate, busy_timeout)}));
}

Store Store::InMemory() {
  Database db = Database::Open(":memory:", Database::Access::kCreate, kBusyTimeout);
  Configure(db);
  CreateSchema(db);
  return Store(std::make_unique<Impl>(Impl{std::move(db)}));
}

const std::string& Store::path() const {
  return impl_->db.path();
}

ExperimentId Store::CreateExperiment(const ExperimentSpec& spec) {
  const std::string spec_text = SpecText(spec);
  impl_->CheckPlace();
  Transaction transaction(impl_->db);
  Run(impl_->db,
      "INSERT INTO experiments (name, method, metric, smaller_is_better, state, reason, created_at,"
      " spec) VALUES (?, ?, ?, ?, 'active', '', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?)",
      spec.name, spec.method, spec.options.metric, SmallerIsBetter(spec.options.metric), spec_text);
  const ExperimentId id = impl_->db.LastInsertId();
  transaction.Commit();
  return id;
}

ExperimentSpec Store::GetSpec(ExperimentId id) const {
  Statement row(impl_->db, "SELECT spec FROM experiments WHERE id = ?", id);
  if (!row.Step()) impl_->ThrowUnknown(std::to_string(id));
  try {
    return ExperimentSpecFromJson(Json::parse(row.Text(0)));
  } catch (const Json::exception& error) {
    ThrowDamaged(path(), id, JsonMessage(error));
  } catch (const Error& error) {
    Throw(ErrorCode::kFailedPrecondition, "{}: cannot read the spec of experiment {}: {}", path(),
          id, error.what());
  }
}

ExperimentRow Store::GetExperiment(ExperimentId id) const {
  Statement row(impl_->db, std::string(kSelectExperiments) + " WHERE e.id = ?", id);
  if (!row.Step()) impl_->ThrowUnknown(std::to_string(id));
  ExperimentRow experiment = ReadExperimentRow(row);
  experiment.has_runner = HasRunner(id);
  return experiment;
}

// One party runs the trials, so that the last launch says which one. In older files a search may
// have taken over.
bool Store::HasRunner(ExperimentId id) const {
  Statement row(impl_->db,
                "SELECT coalesce(e.spec ->> '$.start_dir', '') <> '' OR coalesce((SELECT a.log_dir"
                " FROM attempts AS a WHERE a.experiment = e.id"
                " ORDER BY a.trial DESC, a.attempt DESC LIMIT 1), '') <> ''"
                " FROM experiments AS e WHERE e.id = ?",
                id);
  if (!row.Step()) impl_->ThrowUnknown(std::to_string(id));
  return row.Int(0) != 0;
}

std::vector<ExperimentRow> Store::ListExperiments() const {
  std::vector<ExperimentRow> experiments;
  Statement rows(impl_->db, std::string(kSelectExperiments) + " ORDER BY e.id");
  while (rows.Step())
    experiments.push_back(ReadExperimentRow(rows));
  for (ExperimentRow& experiment : experiments)
    experiment.has_runner = HasRunner(experiment.id);
  return experiments;
}

std::map<ExperimentId, BestTrial> Store::BestTrials() const {
  std::map<ExperimentId, BestTrial> best;
  Statement rows(impl_->db, "SELECT experiment, trial, metric_value FROM best_trials");
  while (rows.Step())
    best[rows.Int(0)] = {rows.Int(1), rows.Real(2)};
  return best;
}

ExperimentId Store::FindExperiment(const std::string& name_or_id) const {
  const std::optional<int64_t> number = ParseNumber<int64_t>(name_or_id);
  Statement row(impl_->db,
                "SELECT id FROM experiments WHERE ?2 = '' OR id = ?1 OR name = ?2"
                " ORDER BY id = ?1 DESC, method = 'check', id DESC LIMIT 1",
                number.value_or(-1), name_or_id);
  if (row.Step()) return row.Int(0);
  if (name_or_id.empty()) Throw(ErrorCode::kNotFound, "{}: there is no experiment yet", path());
  impl_->ThrowUnknown(number ? name_or_id : "named \"" + name_or_id + "\"");
}

std::vector<Event> Store::Events(ExperimentId id, int64_t after_seq) const {
  std::vector<Event> events;
  Statement rows(impl_->db,
                 "SELECT seq, kind, trial, payload FROM events"
                 " WHERE experiment = ? AND seq > ? ORDER BY seq",
                 id, after_seq);
  while (rows.Step()) {
    const int64_t expected = after_seq + static_cast<int64_t>(events.size()) + 1;
    if (rows.Int(0) != expected) {
      Throw(ErrorCode::kDataLoss, "{}: event {} of experiment {} is missing from the log", path(),
            expected, id);
    }
    const int64_t seq = rows.Int(0);
    ReadTexts(path(), id, [&] {
      events.push_back({seq, ParseEventKind(rows.Text(1)), rows.IsNull(2) ? -1 : rows.Int(2),
                        Json::parse(rows.Text(3))});
    });
  }
  return events;
}

int64_t Store::Append(ExperimentId id, int64_t expected_seq, std::span<const Event> events) {
  impl_->CheckPlace();
  Transaction transaction(impl_->db);
  const int64_t last_seq = impl_->LastSeq(id);
  if (last_seq != expected_seq) {
    Throw(ErrorCode::kAborted,
          "{}: experiment {} is at event {}, expected {}: another process has"
          " appended",
          path(), id, last_seq, expected_seq);
  }
  if (last_seq == 0) GetExperiment(id);  // Throws if it does not exist.
  int64_t seq = last_seq;
  for (const Event& event : events) {
    Project(impl_->db, id, event);
    InsertEvent(impl_->db, id, ++seq, event);
  }
  transaction.Commit();
  return seq;
}

std::vector<Trial> Store::Trials(ExperimentId id) const {
  std::vector<Trial> trials;
  ReadTexts(path(), id, [&] { trials = ReadTrials(impl_->db, id); });
  return trials;
}

QueryResult Store::Query(const std::string& sql, const std::optional<QueryLimits>& limits) const {
  return RunReadOnlyQuery(impl_->db, sql, limits);
}

}  // namespace dsat
