// Stores experiments, trials and the log of events in one SQLite file.
#include "db/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"
#include "db/schema.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// Files up to this size are checked page by page when they are opened (about 1 ms per MiB). Of
// larger files only the header and the schema are checked; a damaged page is found when it is read.
constexpr int64_t kMaxCheckedBytes = int64_t{64} << 20;
// A -wal file of 16 MiB: a checkpoint, which waits for the disk, about every 1000 events.
constexpr int kCheckpointPages = 4000;

template <typename... Args>
int64_t QueryInt(const Database& db, std::string_view sql, const Args&... args) {
  Statement statement(db, sql, args...);
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

bool MayWrite(const std::string& path) {
  return faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
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

// The size of a database file; nullopt if there is none.
std::optional<int64_t> FileBytes(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return std::nullopt;
  if (!fs::status_known(status)) ThrowErrno(path, error.value());
  if (!fs::is_regular_file(status)) {
    Throw(ErrorCode::kFailedPrecondition, "{}: {}; expected a database file", path,
          fs::is_directory(status) ? "a folder" : "not a regular file");
  }
  return static_cast<int64_t>(fs::file_size(path));
}

bool NonEmptyFile(const std::string& path) {
  return FileBytes(path).value_or(0) > 0;
}

// Checks by the header that a file is a dsat database of a known version
// (https://www.sqlite.org/fileformat2.html).
void CheckHeader(const std::string& path) {
  constexpr size_t kUserVersionOffset = 60, kApplicationIdOffset = 68, kHeaderBytes = 100;
  std::ifstream file(path, std::ios::binary);
  if (!file) ThrowErrno(path, errno);
  std::string header(kHeaderBytes, '\0');
  if (!file.read(header.data(), kHeaderBytes) ||
      !header.starts_with(std::string("SQLite format 3\0", 16))) {
    Throw(ErrorCode::kDataLoss, "{}: not a dsat database; name another file with --db", path);
  }
  const auto number_at = [&header](size_t offset) {  // The highest byte comes first.
    uint32_t value = 0;
    for (const char byte : header.substr(offset, sizeof(value)))
      value = value << 8 | static_cast<uint8_t>(byte);
    return value;
  };
  if (number_at(kApplicationIdOffset) != kApplicationId) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}: an SQLite database of another program; name another file with --db", path);
  }
  const uint32_t version = number_at(kUserVersionOffset);
  if (version != kSchemaVersion) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}: its schema has version {}, this dsat reads version {}; use {} dsat, or name another "
          "file with --db",
          path, version, kSchemaVersion,
          version > kSchemaVersion ? "a newer" : "the older one that has made the file with this");
  }
}

// The damage that PRAGMA quick_check finds, "" if none.
std::string DamagedPage(const Database& db) {
  Statement check(db, "PRAGMA quick_check(1)");
  check.Step();
  const std::string found = check.Text(0);
  // The finding is the last line; the one before says which database.
  return found == "ok" ? "" : found.substr(found.rfind('\n') + 1);
}

// The first table with an invalid JSON text, "" if there is none. quick_check evaluates our CHECK
// constraints, too, but not through a read-only connection.
std::string DamagedJson(const Database& db) {
  Statement check(
      db,
      "SELECT 'events' WHERE EXISTS (SELECT 1 FROM events WHERE NOT json_valid(payload))"
      " UNION ALL SELECT 'experiments' WHERE EXISTS"
      " (SELECT 1 FROM experiments WHERE NOT json_valid(spec))"
      " UNION ALL SELECT 'trials' WHERE EXISTS"
      " (SELECT 1 FROM trials WHERE NOT (json_valid(assignment) AND json_valid(ds_config)))"
      " UNION ALL SELECT 'attempts' WHERE EXISTS"
      " (SELECT 1 FROM attempts WHERE profile IS NOT NULL AND NOT json_valid(profile))"
      " UNION ALL SELECT 'points' WHERE EXISTS"
      " (SELECT 1 FROM points WHERE NOT json_valid(measurement))");
  return check.Step() ? "a JSON text in " + check.Text(0) : "";
}

// The damage of a file of so many bytes, "" if none.
std::string FindDamage(const std::string& path, Database::Access access, int64_t bytes,
                       std::chrono::milliseconds busy_timeout) {
  try {
    const Database db = Database::Open(path, access, busy_timeout);
    // Without locks, no -wal file holds a part of it.
    if (access == Database::Access::kImmutable &&
        bytes < QueryInt(db, "PRAGMA page_size") * QueryInt(db, "PRAGMA page_count"))
      return "its end is missing";
    const int64_t num_tables =
        QueryInt(db,
                 "SELECT count(*) FROM sqlite_schema WHERE name IN ('experiments', 'trials',"
                 " 'attempts', 'points', 'events', 'trial_metrics', 'best_trials')");
    if (num_tables != 7) return "a table is missing";
    if (bytes > kMaxCheckedBytes) return "";
    const std::string page = DamagedPage(db);
    return page.empty() ? DamagedJson(db) : page;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDataLoss) return "a page cannot be read";
    if (error.code() == ErrorCode::kInvalidArgument) return "its schema cannot be read";
    throw;
  }
}

// Throws unless a file is an undamaged dsat database of a known version. Neither changes it nor
// creates files beside it.
void CheckDatabase(const std::string& path, std::chrono::milliseconds busy_timeout) {
  std::error_code gone;
  const fs::file_time_type last_change = fs::last_write_time(path, gone);
  CheckHeader(path);
  // A rollback journal: the file is being created, or its creation was cut off and will be undone.
  if (NonEmptyFile(path + "-journal")) return;
  // If no process has it open, no locks are needed, and no -wal and -shm files are created.
  const auto in_use = [&path] { return NonEmptyFile(path + "-wal"); };
  const auto access = in_use() ? Database::Access::kReadOnly : Database::Access::kImmutable;
  const std::string damage = FindDamage(path, access, FileBytes(path).value_or(0), busy_timeout);
  if (damage.empty()) return;
  // Another process may have written meanwhile.
  if (access == Database::Access::kImmutable &&
      (in_use() || fs::last_write_time(path, gone) != last_change))
    return CheckDatabase(path, busy_timeout);
  Throw(ErrorCode::kDataLoss,
        "{}: the database is damaged ({}); restore a copy, or save what is left with `sqlite3 {} "
        ".recover`",
        path, damage, path);
}

// Throws if the file at `path` cannot be opened in this mode.
void CheckFile(const std::string& path, Store::Mode mode, std::chrono::milliseconds busy_timeout) {
  const std::optional<int64_t> bytes = FileBytes(path);
  if (bytes.value_or(0) > 0) return CheckDatabase(path, busy_timeout);
  if (mode == Store::Mode::kCreate) {
    if (fs::is_directory(FolderOf(path))) return;
    Throw(ErrorCode::kNotFound, "{}: there is no folder {}; create it first", path, FolderOf(path));
  }
  if (!bytes)
    Throw(ErrorCode::kNotFound, "{}: no such database; name another file with --db", path);
  Throw(ErrorCode::kDataLoss, "{}: the file is empty, not a database; name another file with --db",
        path);
}

// Whether a search runner asks for the trials of experiment `e`. One party runs them, so that the
// last launch says which one. In older files a search may have taken over.
constexpr char kHasRunner[] =
    "coalesce(e.spec ->> '$.start_dir', '') <> '' OR coalesce((SELECT a.log_dir"
    " FROM attempts AS a WHERE a.experiment = e.id"
    " ORDER BY a.trial DESC, a.attempt DESC LIMIT 1), '') <> ''";

// The SQL that reads the experiments for which a condition holds.
std::string SelectExperiments(const char* condition) {
  return fmt::format(
      "SELECT e.id, e.name, e.method, e.state, e.reason, e.created_at, e.metric,"
      " (SELECT count(*) FROM trials AS t WHERE t.experiment = e.id), e.ended_at, {}"
      " FROM experiments AS e WHERE {} ORDER BY e.id",
      kHasRunner, condition);
}

ExperimentRow ReadExperimentRow(const Statement& row) {
  ExperimentRow experiment;
  experiment.id = row.Int(0);
  experiment.name = row.Text(1);
  experiment.method = row.Text(2);
  experiment.state = Parse<ExperimentState>(row.Text(3));
  experiment.reason = row.Text(4);
  experiment.created_at = row.Text(5);
  experiment.metric = row.Text(6);
  experiment.num_trials = row.Int(7);
  experiment.ended_at = row.Text(8);
  experiment.has_runner = row.Int(9) != 0;
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

// Throws if the file has lost its name: a write to it would be lost with this process.
void CheckPlace(const Database& db) {
  if (!db.Moved()) return;
  Throw(ErrorCode::kFailedPrecondition,
        "{}: the database was moved, replaced or deleted while this process had it open; move it "
        "back beside its -wal file",
        db.path());
}

// "2 (gpt2), 3 (llama)" or "none".
std::string KnownExperiments(const Database& db) {
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

[[noreturn]] void ThrowUnknown(const Database& db, const std::string& name_or_id) {
  Throw(ErrorCode::kNotFound, "{}: no experiment {}; there are: {}", db.path(), name_or_id,
        KnownExperiments(db));
}

}  // namespace

Store Store::Open(const std::string& given_path, Mode mode,
                  std::chrono::milliseconds busy_timeout) {
  // SQLite's log is beside the file that a symbolic link leads to.
  const bool is_link = fs::is_symlink(given_path) && fs::exists(given_path);
  const std::string path = is_link ? fs::canonical(given_path).string() : given_path;
  CheckFile(path, mode, busy_timeout);
  return Store(mode == Mode::kReadOnly ? OpenReadOnly(path, busy_timeout)
                                       : OpenWritable(path, mode == Mode::kCreate, busy_timeout));
}

Store Store::InMemory() {
  Database db = Database::Open(":memory:", Database::Access::kCreate, kBusyTimeout);
  Configure(db);
  CreateSchema(db);
  return Store(std::move(db));
}

ExperimentId Store::CreateExperiment(const ExperimentSpec& spec) {
  const std::string spec_text = SpecText(spec);
  CheckPlace(db_);
  Transaction transaction(db_);
  Run(db_,
      "INSERT INTO experiments (name, method, metric, smaller_is_better, state, reason, created_at,"
      " spec) VALUES (?, ?, ?, ?, 'active', '', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?)",
      spec.name, spec.method, spec.options.metric, SmallerIsBetter(spec.options.metric), spec_text);
  const ExperimentId id = db_.LastInsertId();
  transaction.Commit();
  return id;
}

ExperimentSpec Store::GetSpec(ExperimentId id) const {
  Statement row(db_, "SELECT spec FROM experiments WHERE id = ?", id);
  if (!row.Step()) ThrowUnknown(db_, std::to_string(id));
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
  Statement row(db_, SelectExperiments("e.id = ?"), id);
  if (!row.Step()) ThrowUnknown(db_, std::to_string(id));
  return ReadExperimentRow(row);
}

bool Store::HasRunner(ExperimentId id) const {
  Statement row(db_, fmt::format("SELECT {} FROM experiments AS e WHERE e.id = ?", kHasRunner), id);
  if (!row.Step()) ThrowUnknown(db_, std::to_string(id));
  return row.Int(0) != 0;
}

std::vector<ExperimentRow> Store::ListExperiments() const {
  std::vector<ExperimentRow> experiments;
  Statement rows(db_, SelectExperiments("TRUE"));
  while (rows.Step())
    experiments.push_back(ReadExperimentRow(rows));
  return experiments;
}

std::map<ExperimentId, BestTrial> Store::BestTrials(std::optional<ExperimentId> only) const {
  std::map<ExperimentId, BestTrial> best;
  Statement rows(db_,
                 std::string("SELECT experiment, trial, metric_value FROM best_trials WHERE ") +
                     (only ? "experiment = ?" : "? IS NULL"),
                 only);
  while (rows.Step())
    best[rows.Int(0)] = {rows.Int(1), rows.Real(2)};
  return best;
}

ExperimentId Store::FindExperiment(const std::string& name_or_id) const {
  const std::optional<int64_t> number = ParseNumber<int64_t>(name_or_id);
  Statement row(db_,
                "SELECT id FROM experiments WHERE ?2 = '' OR id = ?1 OR name = ?2"
                " ORDER BY id = ?1 DESC, method = 'check', id DESC LIMIT 1",
                number.value_or(-1), name_or_id);
  if (row.Step()) return row.Int(0);
  if (name_or_id.empty()) Throw(ErrorCode::kNotFound, "{}: there is no experiment yet", path());
  ThrowUnknown(db_, number ? name_or_id : "named \"" + name_or_id + "\"");
}

std::vector<Event> Store::Events(ExperimentId id, int64_t after_seq) const {
  std::vector<Event> events;
  Statement rows(db_,
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
      events.push_back({seq, Parse<EventKind>(rows.Text(1)), rows.IsNull(2) ? -1 : rows.Int(2),
                        Json::parse(rows.Text(3))});
    });
  }
  return events;
}

int64_t Store::Append(ExperimentId id, int64_t expected_seq, std::span<const Event> events) {
  CheckPlace(db_);
  Transaction transaction(db_);
  const int64_t last_seq =
      QueryInt(db_, "SELECT coalesce(max(seq), 0) FROM events WHERE experiment = ?", id);
  if (last_seq != expected_seq) {
    Throw(ErrorCode::kAborted,
          "{}: experiment {} is at event {}, expected {}: another process has"
          " appended",
          path(), id, last_seq, expected_seq);
  }
  if (last_seq == 0) GetExperiment(id);  // Throws if it does not exist.
  int64_t seq = last_seq;
  for (const Event& event : events) {
    Project(id, event);
    InsertEvent(db_, id, ++seq, event);
  }
  transaction.Commit();
  return seq;
}

std::vector<Trial> Store::Trials(ExperimentId id) const {
  std::vector<Trial> trials;
  ReadTexts(path(), id, [&] { trials = ReadTrials(id); });
  return trials;
}

}  // namespace dsat
