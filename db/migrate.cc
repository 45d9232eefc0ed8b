// Brings a database that an older dsat has made to the present schema version.
#include "db/migrate.h"

#include <fcntl.h>
#include <sys/file.h>

#include <array>
#include <cerrno>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "db/file_check.h"
#include "db/schema.h"
#include "db/sqlite.h"

namespace dsat {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long one attempt to get the file exclusively waits.
constexpr milliseconds kAttempt{100};

// The statements that lead to a version from the one before. Tables, indices and views that are
// new, and views that have changed, come from schema.sql and need no statement here. A released
// step does not change any more: tests/db/versions holds a database of each version.
struct Step {
  int32_t version;
  const char* sql;
};
constexpr std::array kSteps = {
    // What an older dsat means where the experiment's spec lacks these keys.
    Step{3,
         "UPDATE experiments SET spec = json_insert(spec, '$.start_dir', '', '$.out_dir', '',"
         " '$.device', 'cpu', '$.host_memory_bytes', 0, '$.environment', json('{}'))"},
    // Columns, and values that CHECK constraints allow. The rows stay as they are, so that the text
    // of the constraints is all that changes (https://www.sqlite.org/lang_altertable.html, section
    // 7); its wording is the same in all versions before.
    Step{5, R"sql(
ALTER TABLE experiments ADD COLUMN pick INTEGER;
ALTER TABLE trials ADD COLUMN confirms INTEGER
  CHECK ((confirms IS NOT NULL) = (kind = 'confirm'));
PRAGMA writable_schema = ON;
UPDATE sqlite_schema
  SET sql = replace(sql, '(''profile'', ''submitted'', ''search'')',
                    '(''profile'', ''submitted'', ''search'', ''confirm'')')
  WHERE name = 'trials';
UPDATE sqlite_schema
  SET sql = replace(replace(sql, '(kind = ''state_changed'')',
                            '(kind IN (''search_ended'', ''limits_raised'', ''state_changed''))'),
                    '''told'',', '''told'', ''search_ended'', ''limits_raised'',')
  WHERE name = 'events';
PRAGMA writable_schema = RESET;
)sql"},
    // Columns and values again. Those of version 5 are as its statements above leave them.
    Step{6, R"sql(
ALTER TABLE points ADD COLUMN losses TEXT CHECK (losses IS NULL OR json_valid(losses));
ALTER TABLE points ADD COLUMN rank_peak_bytes TEXT
  CHECK (rank_peak_bytes IS NULL OR json_valid(rank_peak_bytes));
PRAGMA writable_schema = ON;
UPDATE sqlite_schema
  SET sql = replace(replace(sql, '''search'', ''confirm'')',
                            '''search'', ''confirm'', ''reference'', ''soak'')'),
                    '(kind = ''confirm'')', '(kind IN (''confirm'', ''reference'', ''soak''))')
  WHERE name = 'trials';
PRAGMA writable_schema = RESET;
)sql"},
};

int32_t SchemaVersion(const Database& db) {
  Statement version(db, "PRAGMA user_version");
  version.Step();
  return static_cast<int32_t>(version.Int(0));
}

int32_t SchemaVersion(const std::string& path, milliseconds busy_timeout) {
  return SchemaVersion(Database::Open(path, Database::Access::kReadWrite, busy_timeout));
}

// The views that any version has made; those that users have added stay.
constexpr const char* kDropViews =
    "DROP VIEW IF EXISTS best_trials; DROP VIEW IF EXISTS step_losses;"
    " DROP VIEW IF EXISTS trial_metrics";

// Locks the folder of the file, so that of several processes that open an old file one migrates it
// and the others wait. Not the file: closing it would release SQLite's own locks. Throws
// kUnavailable at the deadline.
UniqueFd LockFolder(const std::string& path, steady_clock::time_point deadline) {
  UniqueFd folder(open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) ThrowErrno(FolderOf(path), errno);
  while (flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    // Where the file system has no such locks, the file's own and retries must do.
    if (errno != EWOULDBLOCK && errno != EINTR) return folder;
    if (steady_clock::now() >= deadline) {
      Throw(ErrorCode::kUnavailable, "another process migrates it");
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  return folder;
}

// Throws kUnavailable if another process has the file open. Does nothing if another process has
// migrated it meanwhile.
void MigrateExclusively(const std::string& path) {
  Database db = Database::Open(path, Database::Access::kReadWrite, kAttempt);
  db.Execute("PRAGMA locking_mode = EXCLUSIVE");
  Transaction transaction(db);
  const int32_t version = SchemaVersion(db);
  if (version == kSchemaVersion) return;
  db.Execute(kDropViews);
  for (const Step& step : kSteps) {
    if (step.version > version) db.Execute(step.sql);
  }
  db.Execute(kSchemaSql);
  db.Execute(fmt::format("PRAGMA user_version = {}", kSchemaVersion));
  transaction.Commit();
  Log(LogLevel::kInfo, "database migrated",
      {{"file", path}, {"from_version", version}, {"to_version", kSchemaVersion}});
}

}  // namespace

void MigrateDatabase(const std::string& path, milliseconds busy_timeout) {
  const auto deadline = steady_clock::now() + busy_timeout;
  for (const std::string& place : {path, FolderOf(path)}) {
    if (MayWrite(place)) continue;
    Throw(ErrorCode::kPermissionDenied,
          "{}: its schema is older than version {} and must be migrated, but {} is read-only; make "
          "it writable, or copy the file to a writable folder",
          path, kSchemaVersion, place);
  }
  while (true) {
    try {
      const UniqueFd lock = LockFolder(path, deadline);
      // In a file that is being created, or whose creation was cut off, the version is still 0.
      const int32_t version = SchemaVersion(path, busy_timeout);
      if (version != kSchemaVersion && version != 0) MigrateExclusively(path);
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      if (steady_clock::now() < deadline) continue;
      Throw(ErrorCode::kUnavailable,
            "{}: cannot migrate the database to schema version {} within {} ms; end the processes "
            "that have the file open, then try again ({})",
            path, kSchemaVersion, busy_timeout.count(), error.what());
    }
  }
}

}  // namespace dsat
