// Tests several processes on one file, a process that dies while it writes, and a full disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "base/rng.h"
#include "db/sqlite.h"
#include "db/store.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

// Appends asks, numbered by the log, until there are `limit` of them.
void AppendUntil(Store& store, ExperimentId id, TrialId limit, std::set<TrialId>* mine) {
  while (true) {
    const std::vector<Event> log = store.Events(id);
    const auto next = static_cast<TrialId>(log.size());
    if (next >= limit) return;
    try {
      store.Append(id, next, std::array{AskedEvent(SampleTrial(next))});
      mine->insert(next);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kAborted) throw;
    }
  }
}

TEST(ProcessTest, ConcurrentAppendsAreNeitherLostNorDoubled) {
  constexpr TrialId kEvents = 150;
  const TempFolder folder;
  const std::string path = folder / "dsat.db";
  Store::Open(path, Store::Mode::kCreate).CreateExperiment(SampleSpec());
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(Fork([&] {
      Store store = Store::Open(path, Store::Mode::kReadWrite);
      std::set<TrialId> mine;
      AppendUntil(store, 1, kEvents, &mine);
      return static_cast<int>(mine.size());
    }));
  }
  int appended = 0;
  for (const pid_t child : children)
    appended += WaitFor(child);
  EXPECT_EQ(appended, kEvents);  // No two processes got the same one in.
  const Store store = Store::Open(path, Store::Mode::kReadOnly);
  EXPECT_EQ(store.Events(1).size(), static_cast<size_t>(kEvents));
  EXPECT_EQ(store.Trials(1).size(), static_cast<size_t>(kEvents));
}

TEST(ProcessTest, SeveralProcessesMayCreateTheFileAtOnce) {
  const TempFolder folder;
  const std::string path = folder / "dsat.db";
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(Fork([&] {
      Store::Open(path, Store::Mode::kCreate).CreateExperiment(SampleSpec());
      return 0;
    }));
  }
  for (const pid_t child : children)
    EXPECT_EQ(WaitFor(child), 0);
  EXPECT_EQ(Store::Open(path, Store::Mode::kReadOnly).ListExperiments().size(), 6U);
}

// A child appends three events at a time, reports each success on a pipe, and is killed at a random
// moment. All reported appends are in the file, and the file has only whole appends in order.
TEST(ProcessTest, AKilledWriterLeavesAPrefixThatHoldsAllItReported) {
  constexpr int kRounds = 12, kEventsAtOnce = 3;
  Rng rng(7, 0, "kill");
  for (int round = 0; round < kRounds; ++round) {
    const TempFolder folder;
    const std::string path = folder / "dsat.db";
    std::array<int, 2> reports{};
    ASSERT_EQ(pipe(reports.data()), 0);
    const pid_t child = Fork([&] {
      Store store = Store::Open(path, Store::Mode::kCreate);
      store.CreateExperiment(SampleSpec());
      for (TrialId trial = 0;; ++trial) {
        const Outcome failed{TrialState::kFailed, "x"};
        store.Append(1, trial * kEventsAtOnce,
                     std::array{AskedEvent(SampleTrial(trial)), AttemptStartedEvent(trial, 0, ""),
                                ToldEvent(trial, failed)});
        if (write(reports[1], "x", 1) != 1) return 1;
      }
    });
    close(reports[1]);
    char report = 0;
    if (round > 0) {  // Round 0 may kill the creation.
      ASSERT_EQ(read(reports[0], &report, 1), 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng.Below(20'000)));
    kill(child, SIGKILL);
    ASSERT_EQ(WaitFor(child), 128 + SIGKILL);
    int reported = round > 0 ? 1 : 0;
    while (read(reports[0], &report, 1) == 1)
      ++reported;
    close(reports[0]);

    Store store = Store::Open(path, Store::Mode::kCreate);
    if (store.ListExperiments().empty()) {
      EXPECT_EQ(reported, 0);
      continue;
    }
    const std::vector<Event> log = store.Events(1);
    EXPECT_EQ(log.size() % kEventsAtOnce, 0U);
    const size_t appends = log.size() / kEventsAtOnce;
    EXPECT_GE(appends, static_cast<size_t>(reported));
    EXPECT_LE(appends, static_cast<size_t>(reported) + 1);
    EXPECT_EQ(store.Trials(1).size(), appends);
    for (size_t i = 0; i < log.size(); ++i) {
      EXPECT_EQ(log[i].trial, static_cast<TrialId>(i / kEventsAtOnce));
    }
    store.CreateExperiment(SampleSpec());  // It can be written to.
  }
}

// Gives this process a file system of `size` at `path`, in a mount namespace of its own.
bool MountTiny(const std::string& path, const std::string& size) {
  if (geteuid() == 0 ? unshare(CLONE_NEWNS) != 0 : unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
    return false;
  }
  mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return mount("tmpfs", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
}

TEST(ProcessTest, AFullDiskIsAnErrorAndLosesNothing) {
  constexpr int kNoMount = 77;
  const TempFolder folder;
  const int code = WaitFor(Fork([&] {
    if (!MountTiny(folder.path(), "512k")) return kNoMount;
    const std::string path = folder / "dsat.db", ballast = folder / "ballast";
    Store store = Store::Open(path, Store::Mode::kCreate);
    store.CreateExperiment(SampleSpec());
    store.Append(1, 0, std::array{AskedEvent(SampleTrial(0))});
    std::ofstream(ballast) << std::string(1 << 20, 'x');  // As much as fits.
    int64_t seq = 1;
    std::string message;
    const std::optional<ErrorCode> full = CodeOf(
        [&] {
          for (;; ++seq)
            store.Append(1, seq, std::array{AskedEvent(SampleTrial(seq))});
        },
        &message);
    if (full != ErrorCode::kResourceExhausted) return 1;
    if (message.find("disk is full") == std::string::npos) return 2;
    if (store.Events(1).size() != static_cast<size_t>(seq)) return 3;
    std::filesystem::remove(ballast);
    store.Append(1, seq, std::array{AskedEvent(SampleTrial(seq))});
    store = Store::InMemory();  // Closes the file.
    const auto events = Store::Open(path, Store::Mode::kReadOnly).Events(1);
    return events.size() == static_cast<size_t>(seq) + 1 ? 0 : 4;
  }));
  if (code == kNoMount) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(code, 0);
}

TEST(SqliteTest, AFullDatabaseIsResourceExhaustedAndRollsBack) {
  const TempFolder folder;
  Database db =
      Database::Open(folder / "x.db", Database::Access::kCreate, std::chrono::milliseconds(10));
  db.Execute("CREATE TABLE t (x)");
  db.Execute("PRAGMA max_page_count = 10");
  EXPECT_THAT(RefusalOf(
                  [&] {
                    Transaction transaction(db);
                    for (int i = 0; i < 100; ++i) {
                      dsat::Run(db, "INSERT INTO t VALUES (?)", std::string(2000, 'x'));
                    }
                    transaction.Commit();
                  },
                  ErrorCode::kResourceExhausted),
              HasSubstr("disk is full"));
  EXPECT_FALSE(db.InTransaction());
  Statement count(db, "SELECT count(*) FROM t");
  ASSERT_TRUE(count.Step());
  EXPECT_EQ(count.Int(0), 0);
}

TEST(SqliteTest, ATransactionThatIsNotCommittedIsUndone) {
  Database db =
      Database::Open(":memory:", Database::Access::kCreate, std::chrono::milliseconds(10));
  db.Execute("CREATE TABLE t (x)");
  {
    const Transaction transaction(db);
    dsat::Run(db, "INSERT INTO t VALUES (1)");
  }
  EXPECT_EQ(dsat::Run(db, "UPDATE t SET x = 2"), 0);
}

TEST(SqliteTest, ValuesComeBackAsBound) {
  Database db =
      Database::Open(":memory:", Database::Access::kCreate, std::chrono::milliseconds(10));
  Statement row(db, "SELECT ?, ?, ?, ?", int64_t{1} << 62, 0.1, std::string("a\0b", 3),
                std::optional<double>());
  ASSERT_TRUE(row.Step());
  EXPECT_EQ(row.Int(0), int64_t{1} << 62);
  EXPECT_EQ(row.Real(1), 0.1);
  EXPECT_EQ(row.Text(2), std::string("a\0b", 3));
  EXPECT_TRUE(row.IsNull(3));
  EXPECT_FALSE(row.Step());
}

}  // namespace
}  // namespace dsat
