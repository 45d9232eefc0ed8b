// The schema of a dsat database (db/schema.sql), compiled in.
#pragma once

#include <cstdint>

namespace dsat {

// The statements that create the tables, indices and views that do not exist yet.
extern const char kSchemaSql[];

// PRAGMA user_version. Files of other versions are refused. It is raised when schema.sql changes,
// or when a dsat of another version would misread a file or ask for other trials than its logs
// have. A new key of an experiment's spec is neither: a missing key gets its default, and an older
// dsat refuses a key that it does not know.
inline constexpr int32_t kSchemaVersion = 2;

// PRAGMA application_id, "dsa1" in ASCII: tells our files from other programs' SQLite files.
inline constexpr int32_t kApplicationId = 0x64736131;

}  // namespace dsat
