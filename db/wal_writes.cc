// Hands the log of SQLite's WAL mode to the kernel in one write per commit.
#include "db/wal_writes.h"

#include <sqlite3.h>

#include <new>
#include <string_view>
#include <utility>

namespace dsat {
namespace {

// https://www.sqlite.org/fileformat2.html#the_write_ahead_log
constexpr int kPageHeaderBytes = 24;
constexpr size_t kMostHeldBytes = 1 << 20;

thread_local JoinedWrites* joined = nullptr;

}  // namespace

// A -wal file. The system's own file follows it in memory.
struct WalFile {
  using Methods = sqlite3_io_methods;
  sqlite3_file base;

  static sqlite3_file* System(sqlite3_file* file) {
    return reinterpret_cast<sqlite3_file*>(reinterpret_cast<WalFile*>(file) + 1);
  }

  static int WriteHeld(sqlite3_file* file) {
    if (joined == nullptr || joined->held_.empty()) return SQLITE_OK;
    const std::string held = std::exchange(joined->held_, "");
    return System(file)->pMethods->xWrite(System(file), held.data(), static_cast<int>(held.size()),
                                          joined->held_at_);
  }

  // The system's method, after what is held.
  template <auto kMethod, typename... Args>
  static int Pass(sqlite3_file* file, Args... args) {
    const int code = WriteHeld(file);
    return code != SQLITE_OK ? code : (System(file)->pMethods->*kMethod)(System(file), args...);
  }

  // Holds back all of a commit up to the content of its last page.
  static int Write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
    if (joined == nullptr || joined->is_written_)
      return Pass<&Methods::xWrite>(file, data, bytes, offset);
    const auto* text = static_cast<const char*>(data);
    const bool is_header = bytes == kPageHeaderBytes;
    // The last page has the size of the database there, others have 0.
    if (is_header)
      joined->is_last_page_ = std::string_view(text + 4, 4) != std::string_view("\0\0\0\0", 4);
    if (offset != joined->held_at_ + std::ssize(joined->held_)) {
      if (const int code = WriteHeld(file); code != SQLITE_OK) return code;
      joined->held_at_ = offset;
    }
    try {
      joined->held_.append(text, static_cast<size_t>(bytes));
    } catch (const std::bad_alloc&) {
      return SQLITE_IOERR_NOMEM;
    }
    joined->is_written_ = joined->is_last_page_ && !is_header;
    const bool is_full = joined->held_.size() >= kMostHeldBytes;
    return joined->is_written_ || is_full ? WriteHeld(file) : SQLITE_OK;
  }

  static int Open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags);
};

int WalFile::Open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  static const Methods kMethods = [] {
    Methods methods = {};
    methods.iVersion = 1;
    methods.xClose = Pass<&Methods::xClose>;
    methods.xRead = Pass<&Methods::xRead>;
    methods.xWrite = Write;
    methods.xTruncate = Pass<&Methods::xTruncate>;
    methods.xSync = Pass<&Methods::xSync>;
    methods.xFileSize = Pass<&Methods::xFileSize>;
    methods.xFileControl = Pass<&Methods::xFileControl>;
    methods.xSectorSize = Pass<&Methods::xSectorSize>;
    methods.xDeviceCharacteristics = Pass<&Methods::xDeviceCharacteristics>;
    return methods;
  }();
  sqlite3_vfs* const system = sqlite3_vfs_find(nullptr);
  const bool is_wal = (flags & SQLITE_OPEN_WAL) != 0;
  sqlite3_file* const opened = is_wal ? System(file) : file;
  const int code = system->xOpen(system, name, opened, flags, out_flags);
  if (is_wal) file->pMethods = opened->pMethods == nullptr ? nullptr : &kMethods;
  return code;
}

JoinedWrites::JoinedWrites() {
  joined = this;
}
JoinedWrites::~JoinedWrites() {
  joined = nullptr;
}

const char* WalWritesVfs() {
  static sqlite3_vfs vfs;
  static const int registered = [] {
    vfs = *sqlite3_vfs_find(nullptr);
    vfs.zName = "dsat";
    vfs.szOsFile += static_cast<int>(sizeof(WalFile));
    vfs.xOpen = WalFile::Open;
    return sqlite3_vfs_register(&vfs, /*makeDflt=*/0);
  }();
  return registered == SQLITE_OK ? vfs.zName : nullptr;
}

}  // namespace dsat
