// Brings a database that an older dsat has made to the present schema version.
#include "db/migrate.h"

#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "db/file_check.h"
#include "db/sqlite.h"

namespace dsat {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The views that any version has made; the views that users have added stay.
constexpr const char* kDropViews =
    "DROP VIEW IF EXISTS best_trials; DROP VIEW IF EXISTS step_losses;"
    " DROP VIEW IF EXISTS trial_metrics";

int32_t SchemaVersion(const Database& db) {
  Statement version(db, "PRAGMA user_version");
  version.Step();
  return static_cast<int32_t>(version.Int(0));
}

bool HasVersion(const std::string& path, int32_t version, milliseconds busy_timeout) {
  return SchemaVersion(Database::Open(path, Database::Access::kReadWrite, busy_timeout)) == version;
}

// Throws kUnavailable if another process has the file open.
void MigrateExclusively(const std::string& path, std::span<const MigrationStep> steps,
                        int32_t to_version) {
  // Two processes that wait here would each keep the other one waiting: the caller tries again.
  Database db = Database::Open(path, Database::Access::kReadWrite, milliseconds(0));
  db.Execute("PRAGMA locking_mode = EXCLUSIVE");
  Transaction transaction(db);
  const int32_t version = SchemaVersion(db);
  if (version == to_version) return;
  db.Execute(kDropViews);
  for (const MigrationStep& step : steps) {
    if (step.version > version) db.Execute(step.sql);
  }
  db.Execute(kSchemaSql);
  db.Execute(fmt::format("PRAGMA user_version = {}", to_version));
  transaction.Commit();
  Log(LogLevel::kInfo, "database migrated",
      {{"file", path}, {"from_version", version}, {"to_version", to_version}});
}

}  // namespace

void MigrateDatabase(const std::string& path, milliseconds busy_timeout,
                     std::span<const MigrationStep> steps, int32_t to_version) {
  for (const std::string& place : {path, FolderOf(path)}) {
    if (MayWrite(place)) continue;
    Throw(ErrorCode::kPermissionDenied,
          "{}: its schema is older than version {} and must be migrated, but {} is read-only; make "
          "it writable, or copy the file to a writable folder",
          path, to_version, place);
  }
  const auto deadline = steady_clock::now() + busy_timeout;
  while (true) {
    try {
      // SQLite's log may hold a newer version than the header that was checked.
      if (!HasVersion(path, to_version, busy_timeout)) MigrateExclusively(path, steps, to_version);
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      if (steady_clock::now() >= deadline) {
        Throw(
            ErrorCode::kUnavailable,
            "{}: cannot migrate the database to schema version {} within {} ms; end the processes "
            "that have the file open, then try again ({})",
            path, to_version, busy_timeout.count(), error.what());
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
}

}  // namespace dsat
