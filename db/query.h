// Runs a user's SQL: one statement that only reads.
#ifndef DSAT_DB_QUERY_H_
#define DSAT_DB_QUERY_H_

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

// See Store::Query. While it runs, SQLite's authorizer refuses to write, to attach other files and
// to change settings on the connection.
QueryResult RunReadOnlyQuery(const Database& db, const std::string& sql);

}  // namespace dsat

#endif  // DSAT_DB_QUERY_H_
