// A database of an older schema version is migrated when it is opened.
#include "db/migrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <array>
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

using ::testing::HasSubstr;
using Mode = Store::Mode;
using Rows = std::vector<std::vector<Json>>;

constexpr std::chrono::milliseconds kShort{50}, kLong{10'000};
constexpr int32_t kNext = kSchemaVersion + 2;
// The second step needs the first one, and the step of the file's own version is not repeated.
constexpr std::array kSteps = {
    MigrationStep{kSchemaVersion, "DROP TABLE events"},
    MigrationStep{kSchemaVersion + 1, "ALTER TABLE trials ADD COLUMN note TEXT"},
    MigrationStep{kNext, "UPDATE trials SET note = 'trial ' || id"},
};

Rows RowsOf(const std::string& path, const std::string& sql) {
  const Database db = Database::Open(path, Database::Access::kReadWrite, kShort);
  return RunReadOnlyQuery(db, sql).rows;
}

Rows VersionOf(const std::string& path) {
  return RowsOf(path, "PRAGMA user_version");
}

class MigrateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Store store = Store::Open(path(), Mode::kCreate);
    store.Append(store.CreateExperiment(SampleSpec()), 0,
                 std::vector<Event>{AskedEvent(SampleTrial(0)), AskedEvent(SampleTrial(1))});
  }
  std::string path() const { return folder_ / "dsat.db"; }
  void ExpectMigrated() const {
    EXPECT_EQ(VersionOf(path()), Rows{{kNext}});
    EXPECT_EQ(RowsOf(path(), "SELECT note FROM trials"), (Rows{{"trial 0"}, {"trial 1"}}));
    EXPECT_EQ(RowsOf(path(), "SELECT * FROM events").size(), 2U);
    EXPECT_EQ(RowsOf(path(), "SELECT * FROM trial_metrics").size(), 2U);
  }

  TempFolder folder_;
};

TEST_F(MigrateTest, TheStepsAfterTheFilesVersionRunOnce) {
  {
    Database db = Database::Open(path(), Database::Access::kReadWrite, kShort);
    db.Execute("CREATE VIEW \"my best\" AS SELECT count(*) FROM experiments");
  }
  for (const bool migrated : {false, true}) {
    testing::internal::CaptureStderr();
    MigrateDatabase(path(), kLong, kSteps, kNext);
    const std::string said = testing::internal::GetCapturedStderr();
    if (migrated) {
      EXPECT_EQ(said, "");
    } else {
      EXPECT_THAT(said,
                  HasSubstr(fmt::format("database migrated file={} from_version={} to_version={}\n",
                                        path(), kSchemaVersion, kNext)));
    }
    ExpectMigrated();
  }
  EXPECT_EQ(RowsOf(path(), "SELECT * FROM \"my best\"").size(), 1U);
  EXPECT_EQ(CodeOf([&] { Store::Open(path(), Mode::kReadOnly); }), ErrorCode::kFailedPrecondition);
}

TEST_F(MigrateTest, AProcessThatHasTheFileOpenPreventsIt) {
  {
    Database other = Database::Open(path(), Database::Access::kReadWrite, kShort);
    Statement read(other, "SELECT * FROM experiments");
    ASSERT_TRUE(read.Step());
    std::string message;
    EXPECT_EQ(CodeOf([&] { MigrateDatabase(path(), kShort, kSteps, kNext); }, &message),
              ErrorCode::kUnavailable);
    EXPECT_THAT(message, HasSubstr(path()));
    EXPECT_THAT(message, HasSubstr("end the processes that have the file open"));
    EXPECT_EQ(VersionOf(path()), Rows{{kSchemaVersion}});
  }
  MigrateDatabase(path(), kShort, kSteps, kNext);
  ExpectMigrated();
}

TEST_F(MigrateTest, SeveralProcessesMayOpenAnOldFileAtOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 5; ++i) {
    children.push_back(Fork([&] {
      MigrateDatabase(path(), kLong, kSteps, kNext);
      return 0;
    }));
  }
  for (const pid_t child : children)
    EXPECT_EQ(WaitFor(child), 0);
  ExpectMigrated();
}

TEST_F(MigrateTest, AKilledMigrationLeavesAWholeDatabase) {
  Rng rng(11, 0, "kill");
  const pid_t child = Fork([&] {
    MigrateDatabase(path(), kLong, kSteps, kNext);
    return 0;
  });
  std::this_thread::sleep_for(std::chrono::microseconds(rng.Below(8'000)));
  kill(child, SIGKILL);
  WaitFor(child);
  MigrateDatabase(path(), kLong, kSteps, kNext);
  ExpectMigrated();
}

TEST_F(MigrateTest, AReadOnlyFileOrFolderIsNamedAndStaysAsItIs) {
  const std::string whole = ReadFile(path());
  for (const bool read_only_file : {true, false}) {
    chmod(path().c_str(), read_only_file ? 0444 : 0666);
    chmod(folder_.path().c_str(), read_only_file ? 0777 : 0555);
    EXPECT_EQ(AsNobody([&] {
                std::string message;
                if (CodeOf([&] { MigrateDatabase(path(), kShort, kSteps, kNext); }, &message) !=
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
}

TEST_F(MigrateTest, ASpecOfANewerDsatIsRefusedByItsKey) {
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
