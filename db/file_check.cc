// Checks that a file is an undamaged dsat database of a known version. The layout of the header is
// in SQLite's file format document (https://www.sqlite.org/fileformat2.html).
#include "db/file_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "db/schema.h"
#include "db/sqlite.h"

namespace dsat {
namespace {

// Files up to this size are checked page by page when they are opened (about 1 ms per MiB). Of
// larger files only the header and the schema are checked; a damaged page is found when it is read.
constexpr int64_t kMaxCheckedBytes = int64_t{64} << 20;
constexpr size_t kHeaderBytes = 100;
constexpr size_t kPageSizeOffset = 16;
constexpr size_t kPageCountOffset = 28;
constexpr size_t kUserVersionOffset = 60;
constexpr size_t kApplicationIdOffset = 68;

// The file's size; nullopt if it does not exist. Throws if it is not a regular file or not
// accessible.
std::optional<int64_t> FileBytes(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    ThrowErrno(path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    Throw(ErrorCode::kFailedPrecondition, "{}: {}; expected a database file", path,
          S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
  }
  return status.st_size;
}

// When it was written last, in nanoseconds; 0 if it is gone.
int64_t LastChange(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return 0;
  return status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
}

bool NonEmptyFile(const std::string& path) {
  return FileBytes(path).value_or(0) > 0;
}

std::string ReadHeader(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) ThrowErrno(path, errno);
  std::string header(kHeaderBytes, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  header.resize(static_cast<size_t>(file.gcount()));
  return header;
}

uint32_t BigEndian32(const std::string& bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i)
    value = value << 8 | static_cast<uint8_t>(bytes[offset + i]);
  return value;
}

[[noreturn]] void ThrowCorrupt(const std::string& path, const std::string& what) {
  Throw(ErrorCode::kDataLoss,
        "{}: the database is damaged ({}); restore a copy, or save what is left with `sqlite3 {} "
        ".recover`",
        path, what, path);
}

void CheckHeader(const std::string& path, const std::string& header) {
  if (header.size() < kHeaderBytes || !header.starts_with(std::string("SQLite format 3\0", 16))) {
    Throw(ErrorCode::kDataLoss, "{}: not a dsat database; name another file with --db", path);
  }
  const uint32_t application = BigEndian32(header, kApplicationIdOffset);
  if (application == kUnreleasedApplicationId) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}: a build of dsat before the first release made this database, and this dsat cannot "
          "read it; read it with that build, or name another file with --db",
          path);
  }
  if (application != kApplicationId) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}: an SQLite database of another program; name another file with --db", path);
  }
  const uint32_t version = BigEndian32(header, kUserVersionOffset);
  if (version != kSchemaVersion) {
    Throw(ErrorCode::kFailedPrecondition,
          "{}: its schema has version {}, this dsat reads version {}; use {} dsat, or name another "
          "file with --db",
          path, version, kSchemaVersion,
          version > kSchemaVersion ? "a newer" : "the older one that has made the file with this");
  }
}

// The size of a database with this header if no -wal file holds a part of it.
int64_t WholeBytes(const std::string& header) {
  const uint32_t page_size = BigEndian32(header, kPageSizeOffset) >> 16;
  return int64_t{page_size == 1 ? 65536 : page_size} * BigEndian32(header, kPageCountOffset);
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

// The damage that is found in the content, "" if none.
std::string FindDamage(const std::string& path, Database::Access access, bool every_page,
                       std::chrono::milliseconds busy_timeout) {
  try {
    const Database db = Database::Open(path, access, busy_timeout);
    Statement tables(db,
                     "SELECT count(*) FROM sqlite_schema WHERE name IN ('experiments', 'trials',"
                     " 'attempts', 'points', 'events', 'trial_metrics', 'best_trials')");
    tables.Step();
    if (tables.Int(0) != 7) return "a table is missing";
    if (!every_page) return "";
    const std::string page = DamagedPage(db);
    return page.empty() ? DamagedJson(db) : page;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDataLoss) return "a page cannot be read";
    if (error.code() == ErrorCode::kInvalidArgument) return "its schema cannot be read";
    throw;
  }
}

}  // namespace

FileContent CheckDatabaseFile(const std::string& path, std::chrono::milliseconds busy_timeout) {
  const std::optional<int64_t> bytes = FileBytes(path);
  if (!bytes) return FileContent::kMissing;
  if (*bytes == 0) return FileContent::kEmpty;
  const int64_t last_change = LastChange(path);
  const std::string header = ReadHeader(path);
  CheckHeader(path, header);
  // A rollback journal: the file is being created, or its creation was cut off and will be undone.
  if (NonEmptyFile(path + "-journal")) return FileContent::kDatabase;
  const bool every_page = *bytes <= kMaxCheckedBytes;
  const auto in_use = [&path] { return NonEmptyFile(path + "-wal"); };
  std::string damage;
  if (!in_use()) {
    // No process has it open: no locks are needed, and no -wal and -shm files are created.
    damage = *bytes < WholeBytes(header)
                 ? "its end is missing"
                 : FindDamage(path, Database::Access::kImmutable, every_page, busy_timeout);
    if (damage.empty()) return FileContent::kDatabase;
    // Another process may have written meanwhile and closed it, or have it open now: check again,
    // with locks.
    if (!in_use() && LastChange(path) != last_change) return CheckDatabaseFile(path, busy_timeout);
    if (!in_use()) ThrowCorrupt(path, damage);
  }
  damage = FindDamage(path, Database::Access::kReadOnly, every_page, busy_timeout);
  if (!damage.empty()) ThrowCorrupt(path, damage);
  return FileContent::kDatabase;
}

bool MayWrite(const std::string& path) {
  return faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace dsat
