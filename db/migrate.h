// Brings a database that an older dsat has made to the present schema version.
#ifndef DSAT_DB_MIGRATE_H_
#define DSAT_DB_MIGRATE_H_

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "db/schema.h"

namespace dsat {

// The statements that lead to `version` from the version before it. New tables, indices and views
// and changed views come from schema.sql and need no statement here. A released step does not
// change any more.
struct MigrationStep {
  int32_t version;
  const char* sql;
};

// The steps to kSchemaVersion, by version. There are none yet: version 1 is the first one.
inline constexpr std::span<const MigrationStep> kMigrationSteps;

// Brings the file at `path` to `to_version` with the `steps` after its own version, and logs one
// line. Does nothing if it has that version. The migration is one transaction: after an error, a
// crash or a power failure the file is unchanged or migrated. It needs the file for itself and
// waits up to `busy_timeout` for other processes to close it, because an older dsat cannot write to
// the new schema. Throws kUnavailable if one still has the file open then, and kPermissionDenied if
// the file or its folder is read-only; both name the file, the version and the way out.
void MigrateDatabase(const std::string& path, std::chrono::milliseconds busy_timeout,
                     std::span<const MigrationStep> steps = kMigrationSteps,
                     int32_t to_version = kSchemaVersion);

}  // namespace dsat

#endif  // DSAT_DB_MIGRATE_H_
