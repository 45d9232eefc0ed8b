// A user's own SQL: one statement that reads, and nothing else.
#ifndef DSAT_DB_QUERY_H_
#define DSAT_DB_QUERY_H_

#include <string>
#include <vector>

#include "base/json.h"

namespace dsat {

class Database;

// A result of a user's query: column names and rows of JSON values.
struct QueryResult {
  std::vector<std::string> columns;
  std::vector<std::vector<Json>> rows;
};

// See Store::Query. While it runs, the connection may only read this database: writing, attaching
// other files and changing settings are refused by SQLite's authorizer, before anything happens.
QueryResult RunReadOnlyQuery(const Database& db, const std::string& sql);

}  // namespace dsat

#endif  // DSAT_DB_QUERY_H_
