// Databases of every released schema version are migrated when they are opened.
#include "db/migrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "db/schema.h"
#include "db/sqlite.h"
#include "db/store.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Mode = Store::Mode;
using Rows = std::vector<std::vector<Json>>;

constexpr std::chrono::milliseconds kShort{50};
constexpr int kOldest = 1;

Rows RowsOf(const std::string& path, const std::string& sql) {
  const Database db = Database::Open(path, Database::Access::kReadWrite, kShort);
  return RunReadOnlyQuery(db, sql).rows;
}

int VersionOf(const std::string& path) {
  Database db = Database::Open(path, Database::Access::kReadWrite, kShort);
  Statement version(db, "PRAGMA user_version");
  version.Step();
  return static_cast<int>(version.Int(0));
}

// Whether the migrated database at `path` is complete: an int for a child's exit code, 0 = yes.
int WhatIsWrong(const std::string& path) {
  const Store store = Store::Open(path, Mode::kReadOnly);
  if (VersionOf(path) != kSchemaVersion) return 1;
  if (store.Events(1).size() != 26 || store.Events(2).size() != 17) return 2;
  if (store.GetSpec(1).device != "cpu" && store.GetSpec(1).device != "auto") return 3;
  return store.Trials(1).size() == 5 && store.Trials(2).size() == 4 ? 0 : 4;
}

class MigrateTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "dsat.db"; }
  void Make(int version) {
    for (const char* suffix : {"", "-wal", "-shm"})
      std::filesystem::remove(path() + suffix);
    MakeDatabaseOfVersion(path(), version);
  }

  TempFolder folder_;
};

TEST_F(MigrateTest, EveryVersionIsMigratedInEveryMode) {
  const std::string fresh = folder_ / "fresh.db";
  { Store::Open(fresh, Mode::kCreate); }
  const char* schema = "SELECT type, name, tbl_name FROM sqlite_schema ORDER BY name";
  const char* columns =
      "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c"
      " ORDER BY m.name, c.cid";
  const std::vector<std::string> kept = {
      "SELECT * FROM events",
      "SELECT experiment, id, kind, state, reason, zero_stage, assignment, ds_config, asked_at,"
      " ended_at FROM trials",
      "SELECT * FROM attempts",
      "SELECT experiment, trial, attempt, point, micro_batch_size, throughput, latency_spread, "
      "loss,"
      " measurement, measured_at FROM points",
      "SELECT id, name, method, state, created_at FROM experiments",
      "SELECT experiment, trial, micro_batch_size, metric_value FROM best_trials"};
  for (int version = kOldest; version <= kSchemaVersion; ++version) {
    for (const Mode mode : {Mode::kReadOnly, Mode::kReadWrite, Mode::kCreate}) {
      SCOPED_TRACE(version);
      Make(version);
      std::vector<Rows> before;
      for (const std::string& sql : kept)
        before.push_back(RowsOf(path(), sql));
      testing::internal::CaptureStderr();
      { Store::Open(path(), mode); }
      const std::string told = testing::internal::GetCapturedStderr();
      if (version == kSchemaVersion) {
        EXPECT_EQ(told, "");
      } else {
        EXPECT_THAT(told, HasSubstr(fmt::format("database migrated file={} from_version={} "
                                                "to_version={}\n",
                                                path(), version, kSchemaVersion)));
      }
      for (size_t i = 0; i < kept.size(); ++i)
        EXPECT_EQ(RowsOf(path(), kept[i]), before[i]) << kept[i];
      EXPECT_EQ(RowsOf(path(), schema), RowsOf(fresh, schema));
      Database db = Database::Open(path(), Database::Access::kReadWrite, kShort);
      Database new_db = Database::Open(fresh, Database::Access::kReadWrite, kShort);
      Statement has(db, columns), expected(new_db, columns);
      while (expected.Step()) {
        ASSERT_TRUE(has.Step());
        EXPECT_EQ(has.Text(0) + "." + has.Text(1), expected.Text(0) + "." + expected.Text(1));
      }
      EXPECT_FALSE(has.Step());
    }
  }
}

TEST_F(MigrateTest, ViewsOfTheUserStayWhateverTheirNames) {
  const std::string other = folder_ / "other.db";
  {
    Database db = Database::Open(other, Database::Access::kCreate, kShort);
    db.Execute("CREATE TABLE notes AS SELECT 7 AS value");
  }
  for (int version = kOldest; version < kSchemaVersion; ++version) {
    Make(version);
    {
      Database db = Database::Open(path(), Database::Access::kReadWrite, kShort);
      db.Execute("CREATE VIEW \"my best\" AS SELECT count(*) FROM experiments");
      db.Execute(
          fmt::format("CREATE VIEW \"IF EXISTS x; COMMIT; ATTACH '{}' AS o; "
                      "DELETE FROM o.notes; BEGIN\" AS SELECT 1",
                      other));
    }
    { Store::Open(path(), Mode::kReadOnly); }
    EXPECT_EQ(VersionOf(path()), kSchemaVersion);
    EXPECT_EQ(RowsOf(path(), "SELECT * FROM \"my best\"").size(), 1u);
    EXPECT_EQ(RowsOf(other, "SELECT * FROM notes").size(), 1u);
  }
}

TEST_F(MigrateTest, AMigratedDatabaseCanBeWrittenTo) {
  for (int version = kOldest; version <= kSchemaVersion; ++version) {
    Make(version);
    Store store = Store::Open(path(), Mode::kReadWrite);
    EXPECT_EQ(WhatIsWrong(path()), 0) << version;
    EXPECT_EQ(store.CreateExperiment(SampleSpec()), 3);
    EXPECT_EQ(store.Append(3, 0, std::vector<Event>{AskedEvent(SampleTrial(0))}), 1);
    store.Append(2, 17, std::vector<Event>{ToldEvent(3, {TrialState::kFailed, "x"})});
    // Kinds that versions 5 and 6 have added, and a kind that no version has.
    store.Append(3, 1,
                 std::vector<Event>{SearchEndedEvent("budget"), AskedEvent(SampleConfirm(1, 0)),
                                    AskedEvent(SampleConfirm(2, 0, TrialKind::kReference)),
                                    AskedEvent(SampleConfirm(3, 1, TrialKind::kSoak)),
                                    LimitsRaisedEvent({90, {}, {}}),
                                    StateChangedEvent(ExperimentState::kStopped, "", 0)});
    EXPECT_EQ(store.Trials(3).at(1).confirms, 0) << version;
    EXPECT_EQ(store.Trials(3).at(3).kind, TrialKind::kSoak) << version;
    EXPECT_EQ(store.GetSpec(3).options.max_trials, 90) << version;
    Database db = Database::Open(path(), Database::Access::kReadWrite, kShort);
    for (const char* wrong : {"UPDATE trials SET kind = 'x'", "UPDATE events SET kind = 'x'",
                              "UPDATE trials SET confirms = 1 WHERE kind = 'search'",
                              "UPDATE events SET trial = NULL WHERE kind = 'told'"}) {
      EXPECT_THROW(db.Execute(wrong), Error) << wrong;
    }
  }
}

TEST_F(MigrateTest, KeysThatOldSpecsLackKeepTheirOldMeaning) {
  Make(1);
  const Store store = Store::Open(path(), Mode::kReadOnly);
  EXPECT_EQ(store.GetSpec(2).device, "cpu");
  EXPECT_THAT(store.Query("SELECT spec ->> '$.host_memory_bytes' FROM experiments").rows,
              ElementsAre(ElementsAre(0), ElementsAre(0)));
}

TEST_F(MigrateTest, AProcessThatHasTheFileOpenPreventsIt) {
  Make(kOldest);
  {
    Database other = Database::Open(path(), Database::Access::kReadWrite, kShort);
    Statement read(other, "SELECT * FROM experiments");
    ASSERT_TRUE(read.Step());
    std::string message;
    EXPECT_EQ(CodeOf([&] { Store::Open(path(), Mode::kReadOnly, kShort); }, &message),
              ErrorCode::kUnavailable);
    EXPECT_THAT(message, HasSubstr(path()));
    EXPECT_THAT(message, HasSubstr("end the processes that have the file open"));
    EXPECT_EQ(VersionOf(path()), kOldest);
  }
  EXPECT_EQ(WhatIsWrong(path()), 0);
}

TEST_F(MigrateTest, SeveralProcessesMayOpenAnOldFileAtOnce) {
  Make(kOldest);
  std::vector<pid_t> children;
  for (int i = 0; i < 5; ++i) {
    children.push_back(Fork([&] {
      const Store store = Store::Open(path(), Mode::kReadWrite);
      std::this_thread::sleep_for(
          std::chrono::milliseconds(300));  // The others do not wait for it.
      return 0;
    }));
  }
  for (const pid_t child : children)
    EXPECT_EQ(WaitFor(child), 0);
  EXPECT_EQ(WhatIsWrong(path()), 0);
}

TEST_F(MigrateTest, AKilledMigrationLeavesAWholeDatabase) {
  constexpr int kRounds = 20;
  Rng rng(11, 0, "kill");
  for (int round = 0; round < kRounds; ++round) {
    Make(kOldest);
    const pid_t child = Fork([&] {
      MigrateDatabase(path(), kShort);
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(rng.Below(8'000)));
    kill(child, SIGKILL);
    WaitFor(child);
    const int version = VersionOf(path());
    EXPECT_TRUE(version == kOldest || version == kSchemaVersion) << version;
    EXPECT_EQ(WhatIsWrong(path()), 0) << round;
  }
}

TEST_F(MigrateTest, AReadOnlyFileOrFolderIsNamedAndStaysAsItIs) {
  Make(kOldest);
  const std::string whole = ReadFile(path());
  for (const bool read_only_file : {true, false}) {
    chmod(path().c_str(), read_only_file ? 0444 : 0666);
    chmod(folder_.path().c_str(), read_only_file ? 0777 : 0555);
    EXPECT_EQ(AsNobody([&] {
                std::string message;
                if (CodeOf([&] { Store::Open(path(), Mode::kReadOnly); }, &message) !=
                    ErrorCode::kPermissionDenied) {
                  return 1;
                }
                const std::string& place = read_only_file ? path() : folder_.path();
                const bool named = message.find(place + " is read-only") != std::string::npos;
                return named && message.find("migrate") != std::string::npos ? 0 : 2;
              }),
              0);
  }
  chmod(folder_.path().c_str(), 0777);
  EXPECT_EQ(ReadFile(path()), whole);
  EXPECT_THAT(folder_.Names(), ElementsAre("dsat.db"));
}

TEST_F(MigrateTest, ASpecOfANewerDsatIsRefusedByItsKey) {
  { Store::Open(path(), Mode::kCreate).CreateExperiment(SampleSpec()); }
  {
    Database db = Database::Open(path(), Database::Access::kReadWrite, kShort);
    db.Execute("UPDATE experiments SET spec = json_insert(spec, '$.options.speed', 9)");
  }
  std::string message;
  const Store store = Store::Open(path(), Mode::kReadOnly);
  EXPECT_EQ(CodeOf([&] { store.GetSpec(1); }, &message), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(message, HasSubstr(path() + ": cannot read the spec of experiment 1"));
  EXPECT_THAT(message, HasSubstr("unknown key /speed; it was made by a newer dsat"));
}

}  // namespace
}  // namespace dsat
