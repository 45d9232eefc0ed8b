// The schema of a dsat database (db/schema.sql), compiled in.
#ifndef DSAT_DB_SCHEMA_H_
#define DSAT_DB_SCHEMA_H_

#include <cstdint>

namespace dsat {

// The statements that make an empty database a dsat database.
extern const char kSchemaSql[];

// PRAGMA user_version. Raised whenever schema.sql or the JSON of an experiment's spec changes.
inline constexpr int32_t kSchemaVersion = 3;

// PRAGMA application_id, "dsat" in ASCII: tells our files from other programs' SQLite files.
inline constexpr int32_t kApplicationId = 0x64736174;

}  // namespace dsat

#endif  // DSAT_DB_SCHEMA_H_
