// Is this file one of ours, whole, and of a version that we read? Asked before it is opened for
// use.
#ifndef DSAT_DB_FILE_CHECK_H_
#define DSAT_DB_FILE_CHECK_H_

#include <chrono>
#include <string>

namespace dsat {

// Files up to this size are checked page by page at every opening (about 1 ms per MiB); of larger
// ones only header and schema, and a damaged page is found when it is read.
inline constexpr int64_t kMaxCheckedBytes = int64_t{64} << 20;

// What there is at `path`: nothing, or an empty file (which SQLite takes for an empty database, and
// which a crash during creation leaves behind), or a database.
enum class FileContent { kMissing, kEmpty, kDatabase };

// Looks at the file without changing it or making others beside it. Throws kFailedPrecondition (a
// folder, another program's database, a newer version), kDataLoss (no database, truncated, corrupt)
// or kPermissionDenied, naming the file and the way out.
FileContent CheckDatabaseFile(const std::string& path, std::chrono::milliseconds busy_timeout);

}  // namespace dsat

#endif  // DSAT_DB_FILE_CHECK_H_
