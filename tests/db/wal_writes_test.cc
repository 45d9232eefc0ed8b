// Tests that a commit is one write of the -wal file, which SQLite can read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "db/sqlite.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;

constexpr std::chrono::milliseconds kTimeout{1000};

// The calls of write and its relatives that this process has made.
int64_t NumWrites() {
  std::ifstream io("/proc/self/io");
  for (std::string name; io >> name;) {
    int64_t value = 0;
    io >> value;
    if (name == "syscw:") return value;
  }
  return -1;
}

class WalWritesTest : public ::testing::Test {
 protected:
  Database Open(const std::string& path) {
    Database db = Database::Open(path, Database::Access::kCreate, kTimeout);
    db.Execute("PRAGMA journal_mode = WAL");
    db.Execute("PRAGMA synchronous = NORMAL");
    db.Execute("PRAGMA cache_size = 10");  // A larger transaction writes before it commits.
    db.Execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x)");
    return db;
  }

  static void Insert(Database& db, int first, int count) {
    for (int i = first; i < first + count; ++i)
      dsat::Run(db, "INSERT INTO t VALUES (?, ?)", i, std::string(3000, 'x'));
  }

  // Reads what a process would that finds the files after a crash: rows, damage.
  std::vector<std::string> AfterACrash() {
    const std::string copy = folder_ / "copy.db";
    for (const char* part : {"", "-wal"}) {
      std::filesystem::copy_file(path_ + part, copy + part,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    std::filesystem::remove(copy + "-shm");
    Database db = Database::Open(copy, Database::Access::kReadWrite, kTimeout);
    Statement row(db, "SELECT count(*), min(x), integrity_check FROM t, pragma_integrity_check");
    row.Step();
    return {row.Text(0), row.Text(1).substr(0, 3), row.Text(2)};
  }

  TempFolder folder_;
  std::string path_ = folder_ / "x.db";
  Database db_ = Open(path_);
};

TEST_F(WalWritesTest, ACommitIsOneWrite) {
  for (int i = 0; i < 3; ++i) {
    Transaction transaction(db_);
    Insert(db_, 5 * i, 5);
    const int64_t before = NumWrites();
    transaction.Commit();
    EXPECT_EQ(NumWrites() - before, 1) << i;
  }
  EXPECT_THAT(AfterACrash(), ElementsAre("15", "xxx", "ok"));
}

TEST_F(WalWritesTest, WhatIsRolledBackIsNotWrittenOverAnothersCommit) {
  Database other = Open(path_);
  {
    Transaction transaction(db_);
    Insert(db_, 0, 200);
  }
  {
    Transaction transaction(other);
    Insert(other, 500, 50);
    transaction.Commit();
  }
  Transaction transaction(db_);
  Insert(db_, 300, 3);
  transaction.Commit();
  EXPECT_THAT(AfterACrash(), ElementsAre("53", "xxx", "ok"));
}

TEST_F(WalWritesTest, PagesThatWereWrittenBeforeTheCommitMayChange) {
  Transaction transaction(db_);
  for (const char* text : {"a", "b", "c"}) {
    Insert(db_, 0, text[0] == 'a' ? 100 : 0);
    dsat::Run(db_, "UPDATE t SET x = ?", std::string(3000, text[0]));
  }
  transaction.Commit();
  EXPECT_THAT(AfterACrash(), ElementsAre("100", "ccc", "ok"));
}

}  // namespace
}  // namespace dsat
