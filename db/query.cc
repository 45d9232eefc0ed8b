// Runs a user's SQL: one statement that only reads.
#include "base/error.h"
#include "db/store.h"

namespace dsat {
namespace {

// Throws unless `sql` is one statement that only reads.
Statement PrepareReading(const Database& db, const std::string& sql) {
  try {
    Statement statement = Statement::Compile(db, sql);
    if (statement.Empty()) {
      Throw(ErrorCode::kInvalidArgument, "query: no SQL statement was given");
    }
    if (!Statement::Compile(db, statement.Rest()).Empty()) {
      Throw(ErrorCode::kInvalidArgument,
            "query: one statement at a time; after the first comes \"{}\"", statement.Rest());
    }
    if (!statement.ReadOnly()) Throw(ErrorCode::kPermissionDenied, "the statement writes");
    return statement;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPermissionDenied) throw;
    Throw(ErrorCode::kPermissionDenied,
          "query: only reading is allowed, by one SELECT statement: {}", error.what());
  }
}

bool NextRow(Statement& statement, const ReadOnlyScope& scope, const QueryLimits& limits) {
  try {
    return statement.Step();
  } catch (const Error&) {
    if (!scope.IsLate()) throw;
    Throw(ErrorCode::kDeadlineExceeded,
          "query: still running after {} s; ask for less, or raise --max-seconds",
          std::chrono::duration<double>(limits.time).count());
  }
}

}  // namespace

QueryResult Store::Query(const std::string& sql, const QueryLimits& limits) const {
  const ReadOnlyScope scope(db_, limits.time);
  Statement statement = PrepareReading(db_, sql);
  QueryResult result;
  for (int i = 0; i < statement.NumColumns(); ++i) {
    result.columns.push_back(statement.ColumnName(i));
  }
  while (NextRow(statement, scope, limits)) {
    if (std::ssize(result.rows) >= limits.num_rows) {
      Throw(ErrorCode::kResourceExhausted,
            "query: there are more than {} rows; add LIMIT, or raise --max-rows", limits.num_rows);
    }
    std::vector<Json>& row = result.rows.emplace_back();
    for (int i = 0; i < statement.NumColumns(); ++i)
      row.push_back(statement.Value(i));
  }
  return result;
}

}  // namespace dsat
