// Checks that a file is an undamaged dsat database of a known version, before it is opened.
#ifndef DSAT_DB_FILE_CHECK_H_
#define DSAT_DB_FILE_CHECK_H_

#include <chrono>
#include <string>

namespace dsat {

enum class FileContent {
  kMissing,
  kEmpty,     // SQLite opens it as an empty database; a crash during creation leaves such a file.
  kDatabase,  // A database of schema version kSchemaVersion.
};

// Reads the file without changing it or creating files beside it. Throws kFailedPrecondition (a
// folder, another program's database, another version), kDataLoss (not a database, truncated,
// corrupt) or kPermissionDenied, naming the file and the way out.
FileContent CheckDatabaseFile(const std::string& path, std::chrono::milliseconds busy_timeout);

// True if this process may write to the file or folder.
bool MayWrite(const std::string& path);
// The folder of the file at `path`.
std::string FolderOf(const std::string& path);

}  // namespace dsat

#endif  // DSAT_DB_FILE_CHECK_H_
