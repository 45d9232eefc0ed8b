// Opens files that are not intact databases of dsat: the error is clear, and the file unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "db/schema.h"
#include "db/sqlite.h"
#include "db/store.h"
#include "tests/base/error_code.h"
#include "tests/base/file_size_limit.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Mode = Store::Mode;

constexpr std::chrono::milliseconds kShort{50};

class OpenTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "dsat.db"; }

  void MakeDatabase(int num_trials = 20) {
    Store store = Store::Open(path(), Mode::kCreate);
    const ExperimentId id = store.CreateExperiment(SampleSpec());
    std::vector<Event> events;
    for (int i = 0; i < num_trials; ++i) {
      events.push_back(AskedEvent(SampleTrial(i)));
      events.push_back(ToldEvent(i, {TrialState::kFailed, "x"}));
    }
    store.Append(id, 0, events);
  }

  void Execute(const std::string& sql) {
    Database::Open(path(), Database::Access::kReadWrite, kShort).Execute(sql);
  }

  void Overwrite(size_t offset, const std::string& bytes) {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  // Every mode refuses the file with `code`; the file and its folder stay as they are.
  std::string ExpectRefused(ErrorCode code) {
    const std::string before = ReadFile(path());
    const std::vector<std::string> names = folder_.Names();
    std::string message;
    for (const Mode mode : {Mode::kReadOnly, Mode::kReadWrite, Mode::kCreate}) {
      EXPECT_EQ(CodeOf([&] { Store::Open(path(), mode, kShort); }, &message), code) << message;
      EXPECT_THAT(message, HasSubstr(path()));
    }
    EXPECT_EQ(ReadFile(path()), before);
    EXPECT_EQ(folder_.Names(), names);
    return message;
  }

  TempFolder folder_;
};

TEST_F(OpenTest, AClosedDatabaseIsOneFile) {
  MakeDatabase();
  EXPECT_THAT(folder_.Names(), ElementsAre("dsat.db"));
  { const Store store = Store::Open(path(), Mode::kReadOnly); }
  EXPECT_THAT(folder_.Names(), ElementsAre("dsat.db"));
}

TEST_F(OpenTest, CreateKeepsAnExistingDatabase) {
  MakeDatabase(3);
  EXPECT_EQ(Store::Open(path(), Mode::kCreate).Trials(1).size(), 3U);
}

TEST_F(OpenTest, OpenDatabasesUseWalAndSyncEveryCommit) {
  const Store store = Store::Open(path(), Mode::kCreate);
  Database other = Database::Open(path(), Database::Access::kReadWrite, kShort);
  Statement mode(other, "PRAGMA journal_mode");
  ASSERT_TRUE(mode.Step());
  EXPECT_EQ(mode.Text(0), "wal");
  EXPECT_THAT(folder_.Names(), ::testing::Contains("dsat.db-wal"));
}

TEST_F(OpenTest, AMissingFileIsNotFoundUnlessItIsToBeMade) {
  for (const Mode mode : {Mode::kReadOnly, Mode::kReadWrite}) {
    EXPECT_EQ(CodeOf([&] { Store::Open(path(), mode); }), ErrorCode::kNotFound);
  }
  EXPECT_TRUE(folder_.Names().empty());
}

TEST_F(OpenTest, AMissingFolderIsNamed) {
  const std::string deep = folder_ / "no/such/dsat.db";
  EXPECT_THAT(RefusalOf([&] { Store::Open(deep, Mode::kCreate); }, ErrorCode::kNotFound),
              HasSubstr("no folder " + folder_ / "no/such"));
}

TEST_F(OpenTest, AFolderIsNoDatabase) {
  EXPECT_EQ(CodeOf([&] { Store::Open(folder_.path(), Mode::kCreate); }),
            ErrorCode::kFailedPrecondition);
}

TEST_F(OpenTest, NamesWithUriCharactersAreJustNames) {
  const std::string odd = folder_ / "a b?mode=memory#1%20.db";
  { Store::Open(odd, Mode::kCreate).CreateExperiment(SampleSpec()); }
  EXPECT_EQ(Store::Open(odd, Mode::kReadOnly).ListExperiments().size(), 1U);
  EXPECT_THAT(folder_.Names(), ElementsAre("a b?mode=memory#1%20.db"));
}

TEST_F(OpenTest, ATextFileIsRefused) {
  WriteFileAtomic(path(), "name: not a database\n");
  EXPECT_THAT(ExpectRefused(ErrorCode::kDataLoss), HasSubstr("not a dsat database"));
}

TEST_F(OpenTest, AnEmptyFileIsMadeADatabaseOnlyByCreate) {
  WriteFileAtomic(path(), "");
  for (const Mode mode : {Mode::kReadOnly, Mode::kReadWrite}) {
    EXPECT_EQ(CodeOf([&] { Store::Open(path(), mode); }), ErrorCode::kDataLoss);
  }
  EXPECT_EQ(Store::Open(path(), Mode::kCreate).CreateExperiment(SampleSpec()), 1);
}

TEST_F(OpenTest, AnotherProgramsDatabaseIsRefused) {
  {
    Database other = Database::Open(path(), Database::Access::kCreate, kShort);
    other.Execute("CREATE TABLE theirs (x); PRAGMA application_id = 1234;");
  }
  EXPECT_THAT(ExpectRefused(ErrorCode::kFailedPrecondition), HasSubstr("another program"));
}

TEST_F(OpenTest, ANewerOrOlderSchemaIsRefused) {
  MakeDatabase();
  for (const int32_t version : {kSchemaVersion + 1, kSchemaVersion - 1}) {
    Execute(fmt::format("PRAGMA user_version = {}", version));
    const std::string message = ExpectRefused(ErrorCode::kFailedPrecondition);
    EXPECT_THAT(message, HasSubstr(fmt::format("version {}", version)));
    EXPECT_THAT(message, HasSubstr(version > kSchemaVersion ? "newer dsat" : "older one"));
  }
}

TEST_F(OpenTest, RandomBytesInTheMiddleAreFound) {
  MakeDatabase();
  const size_t page = 4096, pages = ReadFile(path()).size() / page;
  ASSERT_GT(pages, 8U);
  std::string noise;
  for (size_t i = 0; i < page; ++i)
    noise += static_cast<char>(i * 2654435761U >> 13);
  const std::string whole = ReadFile(path());
  for (size_t i = 1; i < pages; ++i) {
    WriteFileAtomic(path(), whole);
    Overwrite(i * page, noise);
    EXPECT_THAT(ExpectRefused(ErrorCode::kDataLoss), HasSubstr("damaged")) << "page " << i;
  }
}

TEST_F(OpenTest, ADamagedJsonTextIsFound) {
  MakeDatabase();
  // Everywhere: a page may hold remains of rows that have moved.
  const std::string whole = ReadFile(path());
  int damaged = 0;
  for (size_t at = 0; (at = whole.find("{\"assignment\":", at)) != std::string::npos; ++at) {
    Overwrite(at, "XXXX");
    ++damaged;
  }
  ASSERT_GE(damaged, 20);
  EXPECT_THAT(ExpectRefused(ErrorCode::kDataLoss), HasSubstr("damaged"));
}

TEST_F(OpenTest, ATextOfAnotherFormIsDamage) {
  MakeDatabase();
  {
    Store store = Store::Open(path(), Mode::kReadWrite);
    const auto seq = static_cast<int64_t>(store.Events(1).size());
    store.Append(1, seq,
                 std::vector<Event>{AskedEvent(SampleTrial(77)), AttemptStartedEvent(77, 0, ""),
                                    MeasuredEvent(77, 0, SamplePoint(10), std::nullopt)});
  }
  const auto expect_damage = [this](const std::string& change, const auto& read) {
    Execute("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON; " + change);
    const Store store = Store::Open(path(), Store::Mode::kReadOnly);
    EXPECT_THAT(RefusalOf([&] { read(store); }, ErrorCode::kDataLoss),
                HasSubstr(path() + ": experiment 1 cannot be read; it was"))
        << change;
  };
  const auto trials = [](const Store& store) { store.Trials(1); };
  expect_damage("UPDATE points SET measurement = '[1e999]'", trials);
  expect_damage("UPDATE points SET measurement = '{}', losses = '\"x\"'", trials);
  expect_damage("DELETE FROM trials WHERE id = 77", trials);
  expect_damage("UPDATE trials SET assignment = '1e999'", trials);
  expect_damage("UPDATE events SET payload = '1e999'", [](const Store& store) { store.Events(1); });
  expect_damage("UPDATE experiments SET spec = '1e999'",
                [](const Store& store) { store.GetSpec(1); });
}

TEST_F(OpenTest, ATruncatedFileIsRefused) {
  MakeDatabase();
  const std::string whole = ReadFile(path());
  for (const size_t size :
       {size_t{10}, size_t{100}, size_t{4096}, whole.size() / 2, whole.size() - 1}) {
    WriteFileAtomic(path(), whole.substr(0, size));
    EXPECT_NE(ExpectRefused(ErrorCode::kDataLoss), "") << size;
  }
}

TEST_F(OpenTest, AMissingTableIsFound) {
  MakeDatabase();
  Execute("DROP TABLE points");
  EXPECT_THAT(ExpectRefused(ErrorCode::kDataLoss), HasSubstr("table is missing"));
}

TEST_F(OpenTest, AMissingEventIsFound) {
  MakeDatabase(3);
  Execute("DELETE FROM events WHERE seq = 3");
  const Store store = Store::Open(path(), Mode::kReadOnly);
  EXPECT_THAT(RefusalOf([&] { store.Events(1); }, ErrorCode::kDataLoss), HasSubstr("event 3"));
}

TEST_F(OpenTest, ALockedDatabaseIsUnavailableAfterTheTimeOut) {
  MakeDatabase();
  Store store = Store::Open(path(), Mode::kReadWrite, kShort);
  Database other = Database::Open(path(), Database::Access::kReadWrite, kShort);
  {
    const Transaction lock(other);
    EXPECT_THAT(RefusalOf([&] { store.CreateExperiment(SampleSpec()); }, ErrorCode::kUnavailable),
                HasSubstr("locked for more than 50 ms"));
    EXPECT_EQ(store.Trials(1).size(), 20U);  // Readers do not wait.
  }
  EXPECT_EQ(store.CreateExperiment(SampleSpec()), 2);
}

TEST_F(OpenTest, AMovedFileTakesNoMoreEventsAndLosesNone) {
  MakeDatabase(1);
  const std::string elsewhere = folder_ / "elsewhere.db";
  {
    Store store = Store::Open(path(), Mode::kReadWrite);
    EXPECT_EQ(store.CreateExperiment(SampleSpec()), 2);
    std::filesystem::rename(path(), elsewhere);
    const std::vector<Event> events = {AskedEvent(SampleTrial(1))};
    EXPECT_THAT(RefusalOf([&] { store.Append(1, 2, events); }, ErrorCode::kFailedPrecondition),
                HasSubstr(path() + ": the database was moved"));
    EXPECT_EQ(CodeOf([&] { store.CreateExperiment(SampleSpec()); }),
              ErrorCode::kFailedPrecondition);
  }
  std::filesystem::rename(elsewhere, path());
  Store store = Store::Open(path(), Mode::kReadWrite);
  EXPECT_EQ(store.ListExperiments().size(), 2U);
  EXPECT_EQ(store.Append(1, 2, std::vector<Event>{AskedEvent(SampleTrial(1))}), 3);
}

TEST_F(OpenTest, TheReasonOfTheSystemIsNamed) {
  MakeDatabase(1);
  const int free = dup(STDERR_FILENO);
  close(free);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{static_cast<rlim_t>(free), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string message;
  const auto open = [&] { Database::Open(path(), Database::Access::kReadOnly, kShort); };
  const std::optional<ErrorCode> code = CodeOf(open, &message);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(message, path() + ": cannot open the database: Too many open files");
}

TEST_F(OpenTest, TheReasonOfTheSystemIsNamedWhereACommitFails) {
  Store store = Store::Open(path(), Mode::kCreate);
  const FileSizeLimit limit(8192);
  EXPECT_EQ(RefusalOf([&] { store.CreateExperiment(SampleSpec()); }, ErrorCode::kUnavailable),
            path() + ": cannot read or write the database: File too large");
}

TEST_F(OpenTest, APathMayBeginWithTwoSlashes) {
  MakeDatabase(3);
  EXPECT_EQ(Store::Open("/" + path(), Mode::kReadWrite).Trials(1).size(), 3U);
}

TEST_F(OpenTest, AReadOnlyStoreReadsAndRefusesToWrite) {
  MakeDatabase(3);
  Store store = Store::Open(path(), Mode::kReadOnly);
  EXPECT_EQ(store.Trials(1).size(), 3U);
  EXPECT_EQ(CodeOf([&] { store.CreateExperiment(SampleSpec()); }), ErrorCode::kPermissionDenied);
  EXPECT_EQ(CodeOf([&] { store.Append(1, 6, std::array{AskedEvent(SampleTrial(3))}); }),
            ErrorCode::kPermissionDenied);
}

TEST_F(OpenTest, AReadOnlyFileCanBeReadOnly) {
  MakeDatabase(3);
  chmod(folder_.path().c_str(), 0777);
  chmod(path().c_str(), 0444);
  EXPECT_EQ(AsNobody([&] {
              std::string message;
              if (CodeOf([&] { Store::Open(path(), Mode::kReadWrite); }, &message) !=
                  ErrorCode::kPermissionDenied) {
                return 1;
              }
              if (message.find("read-only") == std::string::npos) return 2;
              return Store::Open(path(), Mode::kReadOnly).Trials(1).size() == 3 ? 0 : 3;
            }),
            0);
  EXPECT_THAT(folder_.Names(), ElementsAre("dsat.db"));
}

TEST_F(OpenTest, AReadOnlyFolderCanBeReadOnly) {
  MakeDatabase(3);
  chmod(path().c_str(), 0666);
  chmod(folder_.path().c_str(), 0555);
  EXPECT_EQ(AsNobody([&] {
              std::string message;
              const std::string fresh = folder_ / "new.db";
              for (const std::string& name : {path(), fresh}) {
                if (CodeOf([&] { Store::Open(name, Mode::kCreate); }, &message) !=
                    ErrorCode::kPermissionDenied) {
                  return 1;
                }
                if (message.find("not writable") == std::string::npos) return 2;
              }
              return Store::Open(path(), Mode::kReadOnly).Trials(1).size() == 3 ? 0 : 3;
            }),
            0);
}

TEST_F(OpenTest, AnUnreadableFileIsPermissionDenied) {
  MakeDatabase(1);
  chmod(folder_.path().c_str(), 0777);
  chmod(path().c_str(), 0000);
  EXPECT_EQ(AsNobody([&] {
              return CodeOf([&] { Store::Open(path(), Mode::kReadOnly); }) ==
                             ErrorCode::kPermissionDenied
                         ? 0
                         : 1;
            }),
            0);
}

}  // namespace
}  // namespace dsat
