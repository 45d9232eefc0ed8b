// Runs a user's SQL: one statement that only reads.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace dsat {

class Database;

// The result of a query: column names and rows of JSON values.
struct QueryResult {
  std::vector<std::string> columns;
  std::vector<std::vector<Json>> rows;
};

// The limits of a query.
struct QueryLimits {
  std::chrono::milliseconds time;
  int64_t num_rows = 0;
};

// See Store::Query. While it runs, SQLite's authorizer refuses to write, to attach other files and
// to change settings on the connection.
QueryResult RunReadOnlyQuery(const Database& db, const std::string& sql,
                             const std::optional<QueryLimits>& limits = std::nullopt);

}  // namespace dsat
