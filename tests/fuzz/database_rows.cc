// A database whose texts another program has changed.
#include <string>
#include <utility>

#include "db/sqlite.h"
#include "tests/fuzz/database.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

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
  const std::string path = WriteInput("dsat.db", SampleDatabase());
  {
    Database db =
        Database::Open(path, Database::Access::kReadWrite, std::chrono::milliseconds(100));
    // The database's own checks would not stop another program.
    db.Execute("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF");
    db.Execute("PRAGMA synchronous = OFF");
    for (size_t i = 0; i < texts.size(); ++i)
      if (!texts[i].empty()) Run(db, kStatements[i], texts[i]);
  }
  ReadWholeDatabase(path);
}

}  // namespace dsat::fuzz
