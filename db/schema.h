// The schema of a dsat database (db/schema.sql), compiled in.
#ifndef DSAT_DB_SCHEMA_H_
#define DSAT_DB_SCHEMA_H_

#include <cstdint>

namespace dsat {

// The statements that create the tables, indices and views that do not exist yet.
extern const char kSchemaSql[];

// PRAGMA user_version. A release raises it when schema.sql changes or when an older dsat would
// misread what this one writes; a raise needs a step in migrate.h, unless schema.sql is all of it.
// A new key of an experiment's spec needs no raise: a missing key gets its default, and an older
// dsat refuses a key that it does not know.
inline constexpr int32_t kSchemaVersion = 1;

// PRAGMA application_id, "dsa1" in ASCII: tells our files from other programs' SQLite files.
inline constexpr int32_t kApplicationId = 0x64736131;
// The application_id of all builds before the first release. Their files are refused.
inline constexpr int32_t kUnreleasedApplicationId = 0x64736174;

}  // namespace dsat

#endif  // DSAT_DB_SCHEMA_H_
