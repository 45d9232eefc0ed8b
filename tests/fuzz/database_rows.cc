// A database whose texts another program has changed.
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "db/sqlite.h"
#include "db/store.h"
#include "tests/fuzz/database.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {
namespace {

// A text that an input may replace, in the rows where a condition holds at first.
struct Place {
  const char* table;
  const char* column;
  const char* rows;
};
constexpr std::array kPlaces = {
    Place{"experiments", "spec", "TRUE"},       Place{"trials", "assignment", "id = 1"},
    Place{"trials", "ds_config", "id = 1"},     Place{"attempts", "profile", "TRUE"},
    Place{"points", "measurement", "TRUE"},     Place{"points", "losses", "TRUE"},
    Place{"points", "rank_peak_bytes", "TRUE"}, Place{"points", "trial", "trial = 1"},
    Place{"events", "kind", "seq = 1"},         Place{"events", "payload", "TRUE"},
    Place{"trials", "kind", "id = 1"},          Place{"trials", "state", "id = 1"}};

// A database that stays open for all inputs, because to open one takes longer than all else.
struct Rows {
  Rows() {
    // The database's own checks would not stop another program.
    writer.Execute("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF");
    writer.Execute(
        "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; PRAGMA temp_store = MEMORY");
    for (const std::string table : {"experiments", "trials", "attempts", "points", "events"})
      writer.Execute("CREATE TEMP TABLE saved_" + table + " AS SELECT * FROM " + table);
    for (size_t i = 0; i < kPlaces.size(); ++i) {
      const auto& [table, column, rows] = kPlaces[i];
      replace[i] = fmt::format(
          "UPDATE {0} SET {1} = coalesce(?, (SELECT {1} FROM saved_{0} WHERE rowid = {0}.rowid))"
          " WHERE rowid IN (SELECT rowid FROM saved_{0} WHERE {2})",
          table, column, rows);
    }
  }

  std::string path = WriteInput("rows.db", SampleDatabase());
  Database writer =
      Database::Open(path, Database::Access::kReadWrite, std::chrono::milliseconds(100));
  Store reader = Store::Open(path, Store::Mode::kReadOnly, std::chrono::milliseconds(100));
  std::array<std::string, kPlaces.size()> replace;  // Statements; null restores what was there.
  // The texts that have replaced the former ones.
  std::array<std::optional<std::string>, kPlaces.size()> now;
};

}  // namespace

// The new texts of some columns; an empty one changes nothing.
void DatabaseRows(std::string_view input) {
  const auto texts = Parts(input, kPlaces.size());
  static Rows rows;
  auto now = rows.now;
  Transaction transaction(rows.writer);
  for (size_t i = 0; i < texts.size(); ++i) {
    std::optional<std::string> text;
    if (!texts[i].empty()) text = texts[i];
    if (text != now[i]) Run(rows.writer, rows.replace[i], text);
    now[i] = std::move(text);
  }
  transaction.Commit();
  rows.now = std::move(now);
  ReadWholeDatabase(rows.reader);
}

}  // namespace dsat::fuzz
