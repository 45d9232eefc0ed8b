// Only one search runner holds the lock of an experiment.
#include "searcher/search/runner_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>

#include "base/files.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

Json Owner(const std::string& database) {
  return {{"database", database}, {"experiment", 1}, {"created_at", "2026-01-01T00:00:00Z"}};
}

class RunnerLockTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "dsat.db"; }

  // A child that holds the lock of experiment 1 until it is killed.
  pid_t Holder() {
    std::array<int, 2> ready{};
    EXPECT_EQ(pipe(ready.data()), 0);
    const pid_t child = Fork([&] {
      const RunnerLock lock = RunnerLock::Acquire(path(), 1);
      if (write(ready[1], "x", 1) != 1) return 1;
      pause();
      return 0;
    });
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
  }

  TempFolder folder_;
};

TEST_F(RunnerLockTest, TheSecondRunnerIsToldWhoTheFirstIs) {
  const pid_t child = Holder();
  EXPECT_THAT(RefusalOf([&] { RunnerLock::Acquire(path(), 1); }, ErrorCode::kFailedPrecondition),
              testing::AllOf(HasSubstr("experiment 1"),
                             HasSubstr("process " + std::to_string(child) + ";")));
  kill(child, SIGKILL);
  WaitFor(child);
}

TEST_F(RunnerLockTest, AnotherNameOfTheDatabaseIsNoWayAroundIt) {
  WriteFileAtomic(path(), "");
  const std::string link = folder_ / "link.db";
  ASSERT_EQ(symlink(path().c_str(), link.c_str()), 0);
  const pid_t child = Holder();
  EXPECT_EQ(CodeOf([&] { RunnerLock::Acquire(link, 1); }), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(RunnerLock::IsHeld(link, 1));
  kill(child, SIGKILL);
  WaitFor(child);
}

TEST_F(RunnerLockTest, AFolderHasOneWriterAndBelongsToOneExperiment) {
  const Json mine = Owner(path());
  const Json other = Owner(folder_ / "other.db");
  const std::string dir = folder_.path();
  {
    const RunnerLock lock = RunnerLock::ClaimFolder(dir, mine);
    EXPECT_THAT(RefusalOf([&] { RunnerLock::LockFolder(dir); }, ErrorCode::kFailedPrecondition),
                HasSubstr(dir + " is in use by process " + std::to_string(getpid())));
  }
  EXPECT_THAT(
      RefusalOf([&] { RunnerLock::ClaimFolder(dir, other); }, ErrorCode::kFailedPrecondition),
      HasSubstr("experiment 1 of \"" + path()));
  EXPECT_EQ(CodeOf([&] { RunnerLock::CheckUnclaimed(dir); }), ErrorCode::kFailedPrecondition);
  RunnerLock::ClaimFolder(dir, mine);  // Again, for dsat resume.
  EXPECT_EQ(FreeFolder(dir, mine), dir);
  EXPECT_EQ(FreeFolder(dir, other), dir + "-2");
}

TEST_F(RunnerLockTest, AFolderWithFilesOfTheUserIsNotForResults) {
  const Json mine = Owner(path());
  for (const char* name : {"ds_config.json", "metrics.json", "command.txt"}) {
    const std::string dir = folder_ / (std::string("with_") + name);
    std::filesystem::create_directory(dir);
    WriteFileAtomic(dir + "/" + name, "the user's");
    EXPECT_EQ(CodeOf([&] { RunnerLock::CheckUnclaimed(dir); }), ErrorCode::kAlreadyExists);
    EXPECT_THAT(RefusalOf([&] { RunnerLock::ClaimFolder(dir, mine); }, ErrorCode::kAlreadyExists),
                HasSubstr(dir + "/" + name + ": no search has written this file"));
    EXPECT_EQ(FreeFolder(dir, mine), dir + "-2");
    EXPECT_EQ(ReadFile(dir + "/" + name), "the user's");
  }
}

TEST_F(RunnerLockTest, OthersSeeWhetherItIsHeld) {
  EXPECT_FALSE(RunnerLock::IsHeld(path(), 1));
  EXPECT_TRUE(folder_.Names().empty());
  const pid_t child = Holder();
  EXPECT_TRUE(RunnerLock::IsHeld(path(), 1));
  EXPECT_FALSE(RunnerLock::IsHeld(path(), 2));
  kill(child, SIGKILL);
  WaitFor(child);
  EXPECT_FALSE(RunnerLock::IsHeld(path(), 1));
}

TEST_F(RunnerLockTest, AKilledRunnersLockIsFreeAndItsFileIsTidiedUp) {
  const pid_t child = Holder();
  kill(child, SIGKILL);
  WaitFor(child);
  EXPECT_EQ(folder_.Names().size(), 1U);  // The kill left it behind.
  { const RunnerLock lock = RunnerLock::Acquire(path(), 1); }
  EXPECT_TRUE(folder_.Names().empty());
}

TEST_F(RunnerLockTest, ExperimentsAndDatabasesHaveLocksOfTheirOwn) {
  const RunnerLock one = RunnerLock::Acquire(path(), 1);
  const RunnerLock two = RunnerLock::Acquire(path(), 2);
  const RunnerLock other = RunnerLock::Acquire(folder_ / "other.db", 1);
  EXPECT_EQ(CodeOf([&] { RunnerLock::Acquire(path(), 2); }), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(folder_.Names().size(), 3U);
}

TEST_F(RunnerLockTest, AMovedLockIsHeldOnce) {
  std::optional<RunnerLock> kept;
  {
    RunnerLock lock = RunnerLock::Acquire(path(), 1);
    kept.emplace(std::move(lock));
  }
  EXPECT_EQ(CodeOf([&] { RunnerLock::Acquire(path(), 1); }), ErrorCode::kFailedPrecondition);
  kept.reset();
  EXPECT_NO_THROW(RunnerLock::Acquire(path(), 1));
}

TEST_F(RunnerLockTest, ADatabaseInMemoryNeedsNoLock) {
  const RunnerLock one = RunnerLock::Acquire(":memory:", 1);
  EXPECT_NO_THROW(RunnerLock::Acquire(":memory:", 1));
}

// Many processes hold the lock briefly: one at a time, although each removes the file.
TEST_F(RunnerLockTest, TheLockExcludesWhileFilesComeAndGo) {
  constexpr int kProcesses = 4, kTurns = 25;
  const std::string inside = folder_ / "inside";
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(Fork([&] {
      int turns = 0;
      while (turns < kTurns) {
        try {
          const RunnerLock lock = RunnerLock::Acquire(path(), 1);
          if (mkdir(inside.c_str(), 0700) != 0) return 1;  // Somebody else is inside, too.
          if (rmdir(inside.c_str()) != 0) return 2;
          ++turns;
        } catch (const Error& error) {
          if (error.code() != ErrorCode::kFailedPrecondition) throw;
        }
      }
      return 0;
    }));
  }
  for (const pid_t child : children)
    EXPECT_EQ(WaitFor(child), 0);
  EXPECT_TRUE(folder_.Names().empty());
}

}  // namespace
}  // namespace dsat
