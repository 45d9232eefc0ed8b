// A database whose texts another program has changed.
#include <array>
#include <chrono>
#include <string>

#include "db/sqlite.h"
#include "db/store.h"
#include "tests/fuzz/database.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {
namespace {

constexpr std::array kTables = {"experiments", "trials", "attempts", "points", "events"};

// A database that stays open for all inputs, because to open one takes longer than all else.
struct Rows {
  Rows() {
    // The database's own checks would not stop another program.
    writer.Execute("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF");
    writer.Execute(
        "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; PRAGMA temp_store = MEMORY");
    for (const std::string table : kTables)
      writer.Execute("CREATE TEMP TABLE saved_" + table + " AS SELECT * FROM " + table);
  }
  // Undoes what an input has changed.
  void Restore() {
    for (const std::string table : kTables) {
      Run(writer, "DELETE FROM " + table);
      Run(writer, "INSERT INTO " + table + " SELECT * FROM saved_" + table);
    }
  }

  std::string path = WriteInput("rows.db", SampleDatabase());
  Database writer =
      Database::Open(path, Database::Access::kReadWrite, std::chrono::milliseconds(100));
  Store reader = Store::Open(path, Store::Mode::kReadOnly, std::chrono::milliseconds(100));
};

}  // namespace

// The new texts of some columns; an empty one changes nothing.
void DatabaseRows(std::string_view input) {
  static constexpr const char* kStatements[] = {"UPDATE experiments SET spec = ?",
                                                "UPDATE trials SET assignment = ? WHERE id = 1",
                                                "UPDATE trials SET ds_config = ? WHERE id = 1",
                                                "UPDATE attempts SET profile = ?",
                                                "UPDATE points SET measurement = ?",
                                                "UPDATE points SET losses = ?",
                                                "UPDATE points SET rank_peak_bytes = ?",
                                                "UPDATE points SET trial = ? WHERE trial = 1",
                                                "UPDATE events SET kind = ? WHERE seq = 1",
                                                "UPDATE events SET payload = ?",
                                                "UPDATE trials SET kind = ? WHERE id = 1",
                                                "UPDATE trials SET state = ? WHERE id = 1"};
  const auto texts = Parts(input, std::size(kStatements));
  static Rows rows;
  Transaction transaction(rows.writer);
  rows.Restore();
  for (size_t i = 0; i < texts.size(); ++i)
    if (!texts[i].empty()) Run(rows.writer, kStatements[i], texts[i]);
  transaction.Commit();
  ReadWholeDatabase(rows.reader);
}

}  // namespace dsat::fuzz
