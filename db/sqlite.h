// A C++ interface of SQLite with RAII types and exceptions.
//
// Only these files include sqlite3.h. Error codes: kUnavailable (locked for longer than the busy
// time-out, I/O error), kResourceExhausted (disk full), kPermissionDenied (read-only), kDataLoss
// (corrupt, not a database), kInvalidArgument (wrong SQL, constraint violated).
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"

struct sqlite3;
struct sqlite3_stmt;

namespace dsat {

struct FinalizeStatement {
  void operator()(sqlite3_stmt* handle) const;
};
// Compiled statements that are not in use, by their SQL.
using IdleStatements =
    std::map<std::string, std::unique_ptr<sqlite3_stmt, FinalizeStatement>, std::less<>>;

// A connection. Not thread-safe.
class Database {
 public:
  enum class Access {
    kReadWrite,  // The file must exist.
    kCreate,     // The file is created if it is missing.
    kReadOnly,   // Takes part in locking; creates -wal and -shm files if they are missing.
    kImmutable,  // No locks and no other files. REQUIRES: no process writes meanwhile, and there is
                 // no -wal file.
  };

  // Opens `path` (":memory:" is a new database in memory). If the database is locked, a statement
  // waits for `busy_timeout` before it throws.
  static Database Open(const std::string& path, Access access,
                       std::chrono::milliseconds busy_timeout);

  // Runs all statements in `sql` and ignores result rows.
  void Execute(const std::string& sql);

  // True if this connection cannot write to the file.
  bool ReadOnly() const;
  // The number of rows that the last INSERT, UPDATE or DELETE has changed.
  int64_t Changes() const;
  int64_t LastInsertId() const;
  bool InTransaction() const;
  // Whether the file at path() is no longer the one that was opened.
  bool Moved() const;

  const std::string& path() const { return path_; }
  sqlite3* handle() const { return handle_.get(); }
  // Compiled statements are kept, because compiling one takes longer than running it.
  IdleStatements* idle() const { return idle_.get(); }

  // Throws the Error for SQLite's result code `code` of a call on this connection.
  [[noreturn]] void ThrowCode(int code, const std::string& what) const;

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };
  Database(std::string path, std::chrono::milliseconds busy_timeout)
      : path_(std::move(path)), busy_timeout_(busy_timeout) {}

  std::string path_;
  std::chrono::milliseconds busy_timeout_;
  std::unique_ptr<sqlite3, Close> handle_;
  std::unique_ptr<IdleStatements> idle_;  // Closed before the handle.
};

// A prepared statement: Statement(db, "SELECT x FROM t WHERE id = ?", id), then Step until false.
// The database must outlive it.
class Statement {
 public:
  // Binds `args` to the statement's parameters in order. For SQL of this program, because the
  // connection keeps the compiled statement.
  template <typename... Args>
  explicit Statement(const Database& db, std::string_view sql, const Args&... args)
      : Statement(db.idle(), db, sql) {
    int index = 0;
    (Bind(++index, args), ...);
  }

  // Compiles the first statement of a user's SQL, which is not kept.
  static Statement Compile(const Database& db, std::string_view sql);

  // Advances to the next row; false after the last.
  bool Step();

  // Columns of the current row, counted from 0.
  bool IsNull(int column) const;
  int64_t Int(int column) const;
  double Real(int column) const;
  std::string Text(int column) const;  // The bytes of a BLOB.
  Json Value(int column) const;        // A BLOB is hexadecimal text.
  int NumColumns() const;
  std::string ColumnName(int column) const;

  // True if the SQL contains only blanks and comments. REQUIRES: Step is not called then.
  bool Empty() const { return handle_ == nullptr; }
  // True if it cannot change the database.
  bool ReadOnly() const;
  // The SQL after the statement; refers to the text given to Compile.
  std::string_view Rest() const { return rest_; }

 private:
  // Returns the statement to the idle ones if it is kept.
  struct Release {
    IdleStatements* idle = nullptr;  // Null if it is not kept.
    void operator()(sqlite3_stmt* handle) const;
  };
  // Takes the statement from `idle` if it is there, or compiles it; `idle` is null if it is not
  // kept.
  Statement(IdleStatements* idle, const Database& db, std::string_view sql);

  void Bind(int index, int64_t value);
  void Bind(int index, std::integral auto value) { Bind(index, int64_t{value}); }
  void Bind(int index, double value);
  void Bind(int index, std::string_view value);
  void BindNull(int index);
  template <typename T>
  void Bind(int index, const std::optional<T>& value) {
    value ? Bind(index, *value) : BindNull(index);
  }
  void Check(int code) const;

  sqlite3_stmt* handle() const { return handle_.get(); }

  const Database* db_;
  std::unique_ptr<sqlite3_stmt, Release> handle_;
  std::string_view rest_;
};

// While it exists, statements prepared on the connection may only read; others (writing, attaching
// files, settings, transactions) throw kPermissionDenied when they are prepared.
class ReadOnlyScope {
 public:
  // Statements that still run after `time` are interrupted.
  ReadOnlyScope(const Database& db, std::chrono::milliseconds time);
  ~ReadOnlyScope();
  ReadOnlyScope(const ReadOnlyScope&) = delete;
  ReadOnlyScope& operator=(const ReadOnlyScope&) = delete;
  // Whether the time is over.
  bool IsLate() const;

 private:
  const Database& db_;
  int max_bytes_before_ = 0;
  std::chrono::steady_clock::time_point deadline_;
};

// Runs one statement to its end and returns the number of rows that it has changed.
template <typename... Args>
int64_t Run(const Database& db, std::string_view sql, const Args&... args) {
  Statement statement(db, sql, args...);
  while (statement.Step()) {
  }
  return db.Changes();
}

// A write transaction. It takes the write lock at once and is rolled back unless it is committed.
class Transaction {
 public:
  explicit Transaction(Database& db);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  // After it has returned, the changes survive the death of this process.
  void Commit();

 private:
  Database& db_;
};

}  // namespace dsat
