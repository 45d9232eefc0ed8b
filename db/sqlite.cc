// A C++ interface of SQLite with RAII types and exceptions.
#include "db/sqlite.h"

#include <fmt/ranges.h>
#include <sqlite3.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

// The "file:" URI of a path, with the special characters of URIs escaped.
std::string FileUri(const std::string& path, const std::string& query) {
  // Without the empty authority, SQLite would read one in //home/x.db.
  std::string uri = path.starts_with('/') ? "file://" : "file:";
  for (const char c : path) {
    if (c == '%' || c == '?' || c == '#') {
      uri += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    } else {
      uri += c;
    }
  }
  return uri + query;
}

int OpenFlags(Database::Access access) {
  if (access == Database::Access::kCreate) return SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  return access == Database::Access::kReadWrite ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
}

ErrorCode CodeOf(int sqlite_code, int system_errno) {
  switch (sqlite_code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG:
      return ErrorCode::kResourceExhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return ErrorCode::kUnavailable;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return ErrorCode::kPermissionDenied;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return ErrorCode::kDataLoss;
    case SQLITE_ERROR:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_RANGE:
      return ErrorCode::kInvalidArgument;
    case SQLITE_CANTOPEN:
      if (system_errno == EMFILE || system_errno == ENFILE) return ErrorCode::kResourceExhausted;
      return system_errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermissionDenied;
    case SQLITE_IOERR:
      return system_errno == ENOSPC || system_errno == EDQUOT ? ErrorCode::kResourceExhausted
                                                              : ErrorCode::kUnavailable;
    default:
      return ErrorCode::kInternal;
  }
}

// The largest text or BLOB that a user's statement may make.
constexpr int kMaxValueBytes = 1 << 26;
// Steps of SQLite's machine between two looks at the clock.
constexpr int kStepsBetweenLooks = 10'000;

// SQLite calls it for each action of a statement that it compiles; see sqlite3_set_authorizer.
int AllowReading(void*, int action, const char* name, const char* argument, const char*,
                 const char*) {
  switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ:
    case SQLITE_RECURSIVE:
      return SQLITE_OK;
    case SQLITE_FUNCTION: {  // No other function writes or gives an address of this process.
      const std::string_view called = argument;
      const bool is_open = called == "load_extension" || called == "fts3_tokenizer";
      return is_open ? SQLITE_DENY : SQLITE_OK;
    }
    case SQLITE_PRAGMA: {
      // Pragmas that describe the schema are allowed; those that change settings are not.
      const std::string_view pragma = name;
      if (pragma == "user_version" || pragma == "application_id")
        return argument == nullptr ? SQLITE_OK : SQLITE_DENY;
      const bool describes = pragma == "table_info" || pragma == "table_xinfo" ||
                             pragma == "table_list" || pragma == "index_list" ||
                             pragma == "index_info" || pragma == "foreign_key_list";
      return describes ? SQLITE_OK : SQLITE_DENY;
    }
    default:
      return SQLITE_DENY;
  }
}

}  // namespace

void Database::Close::operator()(sqlite3* handle) const {
  sqlite3_close_v2(handle);
}

Database Database::Open(const std::string& path, Access access,
                        std::chrono::milliseconds busy_timeout) {
  Database db(path, busy_timeout);
  const bool in_memory = path == ":memory:";
  const std::string name =
      in_memory ? path : FileUri(path, access == Access::kImmutable ? "?immutable=1" : "");
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(
      name.c_str(), &handle, OpenFlags(access) | SQLITE_OPEN_URI | SQLITE_OPEN_EXRESCODE, nullptr);
  db.handle_.reset(handle);  // It is set after a failure, too, and must be closed.
  db.idle_ = std::make_unique<IdleStatements>();
  if (code != SQLITE_OK) db.ThrowCode(code, "cannot open the database");
  sqlite3_busy_timeout(handle, static_cast<int>(busy_timeout.count()));
  return db;
}

void Database::Execute(const std::string& sql) {
  const int code = sqlite3_exec(handle(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) ThrowCode(code, sql.substr(0, sql.find('\n')));
}

bool Database::ReadOnly() const {
  return sqlite3_db_readonly(handle(), "main") == 1;
}
int64_t Database::Changes() const {
  return sqlite3_changes64(handle());
}
int64_t Database::LastInsertId() const {
  return sqlite3_last_insert_rowid(handle());
}
bool Database::InTransaction() const {
  return sqlite3_get_autocommit(handle()) == 0;
}

bool Database::Moved() const {
  int moved = 0;
  sqlite3_file_control(handle(), "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  return moved != 0;
}

void Database::ThrowCode(int code, const std::string& what) const {
  const int last_errno = errno;
  const bool is_io = (code & 0xff) == SQLITE_IOERR;  // Such as without room for the -shm file.
  int system_errno = handle_ ? sqlite3_system_errno(handle()) : 0;
  if (is_io && system_errno == 0) system_errno = last_errno;  // SQLite keeps no errno of a COMMIT.
  const ErrorCode error = CodeOf(code, system_errno);
  if (error == ErrorCode::kUnavailable && !is_io) {
    Throw(error, "{}: another process has kept the database locked for more than {} ms; try again",
          path_, busy_timeout_.count());
  }
  if ((code & 0xff) == SQLITE_FULL || (is_io && error == ErrorCode::kResourceExhausted)) {
    Throw(error, "{}: the disk is full; nothing was written, free some space and try again", path_);
  }
  if ((code & 0xff) == SQLITE_NOMEM)
    Throw(error, "{}: this process gets no memory to use the database; try again", path_);
  if (system_errno != 0 && (is_io || (code & 0xff) == SQLITE_CANTOPEN)) {
    Throw(error, "{}: cannot {} the database: {}", path_, is_io ? "read or write" : "open",
          std::strerror(system_errno));  // SQLite's message does not say why.
  }
  // The message is read last: the calls above do not change it.
  Throw(error, "{}: {}: {}", path_, what,
        handle_ ? sqlite3_errmsg(handle()) : sqlite3_errstr(code));
}

void FinalizeStatement::operator()(sqlite3_stmt* handle) const {
  sqlite3_finalize(handle);
}

void Statement::Release::operator()(sqlite3_stmt* handle) const {
  std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement(handle);
  if (idle == nullptr) return;
  // Without these calls the statement would keep its locks and its texts.
  sqlite3_reset(handle);
  sqlite3_clear_bindings(handle);
  idle->try_emplace(sqlite3_sql(handle), std::move(statement));
}

Statement::Statement(IdleStatements* idle, const Database& db, std::string_view sql)
    : db_(&db), handle_(nullptr, Release{idle}) {
  if (idle != nullptr) {
    const auto found = idle->find(sql);
    if (found != idle->end()) {
      handle_.reset(idle->extract(found).mapped().release());
      return;
    }
  }
  sqlite3_stmt* handle = nullptr;
  const char* rest = nullptr;
  const int code = sqlite3_prepare_v3(db.handle(), sql.data(), static_cast<int>(sql.size()),
                                      idle ? SQLITE_PREPARE_PERSISTENT : 0, &handle, &rest);
  if (code != SQLITE_OK) db.ThrowCode(code, std::string(sql));
  handle_.reset(handle);
  rest_ = sql.substr(rest - sql.data());
}

Statement Statement::Compile(const Database& db, std::string_view sql) {
  return {nullptr, db, sql};
}

bool Statement::Step() {
  const int code = sqlite3_step(handle());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  db_->ThrowCode(code, sqlite3_sql(handle()));
}

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(handle(), column) == SQLITE_NULL;
}

int64_t Statement::Int(int column) const {
  return sqlite3_column_int64(handle(), column);
}
double Statement::Real(int column) const {
  return sqlite3_column_double(handle(), column);
}

std::string Statement::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(handle(), column));
  return text ? std::string(text, sqlite3_column_bytes(handle(), column)) : std::string();
}

Json Statement::Value(int column) const {
  switch (sqlite3_column_type(handle(), column)) {
    case SQLITE_NULL:
      return nullptr;
    case SQLITE_INTEGER:
      return Int(column);
    case SQLITE_FLOAT:
      return Real(column);
    case SQLITE_BLOB: {
      const std::string bytes = Text(column);
      return fmt::format("{:02x}",
                         fmt::join(std::vector<unsigned char>(bytes.begin(), bytes.end()), ""));
    }
    default:
      return ValidUtf8(Text(column));
  }
}

int Statement::NumColumns() const {
  return sqlite3_column_count(handle());
}

std::string Statement::ColumnName(int column) const {
  const char* name = sqlite3_column_name(handle(), column);
  return name ? name : "";
}

bool Statement::ReadOnly() const {
  return sqlite3_stmt_readonly(handle()) != 0;
}

void Statement::Bind(int index, int64_t value) {
  Check(sqlite3_bind_int64(handle(), index, value));
}

void Statement::Bind(int index, double value) {
  Check(sqlite3_bind_double(handle(), index, value));
}

void Statement::Bind(int index, std::string_view value) {
  Check(sqlite3_bind_text64(handle(), index, value.data(), value.size(), SQLITE_TRANSIENT,
                            SQLITE_UTF8));
}

void Statement::BindNull(int index) {
  Check(sqlite3_bind_null(handle(), index));
}

void Statement::Check(int code) const {
  if (code != SQLITE_OK) db_->ThrowCode(code, sqlite3_sql(handle()));
}

ReadOnlyScope::ReadOnlyScope(const Database& db, std::chrono::milliseconds time)
    : db_(db), deadline_(std::chrono::steady_clock::now() + time) {
  // A connection declares the tables of these functions at their first use, which ReadOnlyScope
  // would refuse.
  Statement(db,
            "SELECT 1 FROM json_each('[]'), json_tree('[]'), pragma_table_info(''),"
            " pragma_table_xinfo(''), pragma_table_list, pragma_index_list(''),"
            " pragma_index_info(''), pragma_foreign_key_list('')");
  sqlite3_set_authorizer(db_.handle(), &AllowReading, nullptr);
  max_bytes_before_ = sqlite3_limit(db_.handle(), SQLITE_LIMIT_LENGTH, kMaxValueBytes);
  const auto is_late = [](void* scope) {
    return static_cast<ReadOnlyScope*>(scope)->IsLate() ? 1 : 0;
  };
  sqlite3_progress_handler(db_.handle(), kStepsBetweenLooks, is_late, this);
}

bool ReadOnlyScope::IsLate() const {
  return std::chrono::steady_clock::now() > deadline_;
}

ReadOnlyScope::~ReadOnlyScope() {
  sqlite3_progress_handler(db_.handle(), 0, nullptr, nullptr);
  sqlite3_limit(db_.handle(), SQLITE_LIMIT_LENGTH, max_bytes_before_);
  sqlite3_set_authorizer(db_.handle(), nullptr, nullptr);
}

Transaction::Transaction(Database& db) : db_(db) {
  Run(db_, "BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  // After some errors, such as a full disk, SQLite has already rolled back.
  if (db_.InTransaction()) sqlite3_exec(db_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void Transaction::Commit() {
  Run(db_, "COMMIT");
}

}  // namespace dsat
