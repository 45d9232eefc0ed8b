// Brings a database that an older dsat has made to the present schema version.
#ifndef DSAT_DB_MIGRATE_H_
#define DSAT_DB_MIGRATE_H_

#include <chrono>
#include <string>

namespace dsat {

// Migrates the file at `path` if its schema version is older than kSchemaVersion, and logs one
// line. The migration is one transaction: after an error, a crash or a power failure the file is
// unchanged or migrated. It needs the file for itself and waits up to `busy_timeout` for other
// processes to close it, because an older dsat cannot write to the new schema. Throws kUnavailable
// if one still has the file open then, and kPermissionDenied if the file or its folder is
// read-only; both name the file, the versions and the way out.
void MigrateDatabase(const std::string& path, std::chrono::milliseconds busy_timeout);

}  // namespace dsat

#endif  // DSAT_DB_MIGRATE_H_
