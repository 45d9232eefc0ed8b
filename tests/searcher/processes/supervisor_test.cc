// Tests supervisors of real processes: their reports, and that no process survives.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "engine/runtime/rank_variables.h"
#include "searcher/processes/process_tree.h"
#include "tests/base/error_code.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A rank that runs this program in one of its modes (launch_test_main.cc).
RankCommand SelfRank(const TempFolder& folder, int rank, const std::string& mode) {
  RankCommand command = ShellRank(folder, rank, "");
  command.argv = {SelfBinary(), mode, folder.path()};
  return command;
}

ExitReport RunRanks(const TempFolder& folder, const std::vector<RankCommand>& ranks) {
  SupervisedProcess process =
      SupervisedProcess::Start(SelfBinary(), ranks, folder.path(), kShortGrace);
  return WaitForReport(process);
}

// A rank that keeps running and creates `folder`/ready<rank>.
RankCommand StayingRank(const TempFolder& folder, int rank, const std::string& before = "") {
  const std::string ready = "\"$0\"/ready" + std::to_string(rank);
  return ShellRank(folder, rank, before + " : > " + ready + "; while :; do sleep 5; done");
}

class SupervisorTest : public testing::Test {
 protected:
  SupervisedProcess Start(const std::vector<RankCommand>& ranks, const GraceTimes& grace = {}) {
    return SupervisedProcess::Start(SelfBinary(), ranks, folder.path(), grace);
  }

  TempFolder folder;
};

TEST_F(SupervisorTest, ReportsRanksThatAllEndWell) {
  const ExitReport report = RunRanks(
      folder, {ShellRank(folder, 0, "echo first; echo last"), ShellRank(folder, 1, "sleep 0.1")});
  EXPECT_EQ(report.first_failed_rank, -1);
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_FALSE(report.killed_by_us);
  EXPECT_EQ(report.oom_kills, 0);
  EXPECT_THAT(report.exit_codes, ElementsAre(0, 0));
  EXPECT_THAT(report.log_tail, HasSubstr("first\nlast"));
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, NamesTheRankThatFailedFirstAndEndsTheOthers) {
  const ExitReport report = RunRanks(
      folder, {StayingRank(folder, 0),
               ShellRank(folder, 1,
                         "while [ ! -e \"$0\"/ready0 -o ! -e \"$0\"/ready2 ]; do sleep 0.01; done; "
                         "echo its last words >&2; exit 7"),
               StayingRank(folder, 2)});
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_EQ(report.exit_code, 7);
  EXPECT_FALSE(report.killed_by_us);
  EXPECT_THAT(report.exit_codes, ElementsAre(128 + SIGTERM, 7, 128 + SIGTERM));
  EXPECT_THAT(report.log_tail, HasSubstr("its last words"));
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, GivesTheOthersTimeToFailByThemselves) {
  SupervisedProcess process =
      Start(  // The first one goes on when the end of the other has been seen.
          {ShellRank(folder, 0,
                     "while [ ! -e \"$0\"/pid ]; do sleep 0.01; done; "
                     "while kill -0 $(cat \"$0\"/pid) 2>/dev/null; do sleep 0.01; done; exit 5"),
           ShellRank(folder, 1, "echo $$ > \"$0\"/new; mv \"$0\"/new \"$0\"/pid; exit 7")},
          {milliseconds(15000), milliseconds(100)});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_THAT(report.exit_codes, ElementsAre(5, 7));
}

// The end of rank 1 is seen last, as if its peer had noticed it before the supervisor.
TEST_F(SupervisorTest, ARankThatCrashedIsTheCauseOfItsPeersErrors) {
  SupervisedProcess process =
      Start({ShellRank(folder, 0, "echo lost a peer; exit 1"),
             ShellRank(folder, 1, "sleep 0.3; echo last words; kill -KILL $$")},
            {milliseconds(15000), milliseconds(100)});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_EQ(report.exit_code, 128 + SIGKILL);
  EXPECT_THAT(report.log_tail, HasSubstr("last words"));
}

TEST_F(SupervisorTest, KillsARankThatIgnoresSigterm) {
  const ExitReport report = RunRanks(
      folder, {StayingRank(folder, 0, "trap '' TERM;"),
               ShellRank(folder, 1, "while [ ! -e \"$0\"/ready0 ]; do sleep 0.01; done; exit 1")});
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_THAT(report.exit_codes, ElementsAre(128 + SIGKILL, 1));
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, TellsTheSignalThatKilledARank) {
  const ExitReport report = RunRanks(folder, {ShellRank(folder, 0, "kill -SEGV $$")});
  EXPECT_EQ(report.first_failed_rank, 0);
  EXPECT_EQ(report.exit_code, 128 + SIGSEGV);
}

TEST_F(SupervisorTest, EndsDaemonsThatTheRanksLeaveBehind) {
  const ExitReport report = RunRanks(
      folder, {SelfRank(folder, 0, "daemon"), ShellRank(folder, 1, "sleep 1000 & exit 0")});
  EXPECT_EQ(report.first_failed_rank, -1);
  EXPECT_THAT(report.exit_codes, ElementsAre(0, 0));
  ExpectNothingLeft(folder);
}

class RunAwayTest : public testing::TestWithParam<std::string> {};

TEST_P(RunAwayTest, ProcessesThatForkForeverLose) {
  TempFolder folder;
  const ExitReport report =
      RunRanks(folder, {SelfRank(folder, 0, GetParam()), SelfRank(folder, 1, GetParam())});
  EXPECT_EQ(report.first_failed_rank, -1);
  ExpectNothingLeft(folder);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RunAwayTest, testing::Values("run-away", "run-away-in-sessions"),
                         [](const auto& test_info) {
                           return test_info.param == "run-away" ? "SameSession" : "NewSessions";
                         });

TEST_F(SupervisorTest, StopGivesTheRanksTimeToSave) {
  SupervisedProcess process = Start({ShellRank(folder, 0,
                                               "trap 'echo saved; exit 0' TERM; : > \"$0\"/ready0; "
                                               "while :; do sleep 0.05; done")},
                                    kShortGrace);
  ASSERT_TRUE(AreReady(folder, {0}));
  EXPECT_EQ(process.Poll(), std::nullopt);
  process.Stop(milliseconds(15000));
  const ExitReport report = WaitForReport(process);
  EXPECT_TRUE(report.killed_by_us);
  EXPECT_EQ(report.first_failed_rank, -1);
  EXPECT_THAT(report.exit_codes, ElementsAre(0));
  EXPECT_THAT(report.log_tail, HasSubstr("saved"));
  EXPECT_EQ(process.Poll()->log_tail, report.log_tail);  // Again the same.
}

TEST_F(SupervisorTest, StopKillsAfterTheGraceTimeAndASecondStopShortensIt) {
  SupervisedProcess process = Start({StayingRank(folder, 0, "trap '' TERM;")});
  ASSERT_TRUE(AreReady(folder, {0}));
  process.Stop(std::chrono::hours(1));
  process.Stop(milliseconds(50));
  const ExitReport report = WaitForReport(process);
  EXPECT_TRUE(report.killed_by_us);
  EXPECT_THAT(report.exit_codes, ElementsAre(128 + SIGKILL));
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, AFailureBeforeTheStopIsStillAFailure) {
  SupervisedProcess process = Start({ShellRank(folder, 0, "exit 4"), StayingRank(folder, 1)},
                                    {std::chrono::hours(1), milliseconds(100)});
  ASSERT_TRUE(Eventually(
      [&] { return ProcessesNaming(folder / "rank0").empty() && AreReady(folder, {1}); }));
  // The failed rank is a zombie for an instant after it has ended.
  ASSERT_TRUE(Eventually([&] { return ChildrenOf(ChildrenOf(getpid()).at(0)).size() == 1; }));
  process.Stop(milliseconds(0));
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 0);
  EXPECT_EQ(report.exit_code, 4);
  EXPECT_FALSE(report.killed_by_us);
}

TEST_F(SupervisorTest, TheDestructorLeavesNothing) {
  {
    SupervisedProcess process =
        Start({StayingRank(folder, 0, "trap '' TERM;"), StayingRank(folder, 1)});
    ASSERT_TRUE(AreReady(folder, {0, 1}));
  }
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, WhenTheRunnerIsKilledNothingSurvives) {
  for (const bool supervisor_is_stopped : {false, true}) {
    TempFolder folder;
    const std::string self = SelfBinary(), path = folder.path();
    // The rank starts a daemon and keeps running.
    const std::string script = "\"$1\" daemon \"$0\"; : > \"$0\"/ready0; while :; do sleep 5; done";
    std::vector<std::string> args = {self, "runner", path, "sh", "-c", script, path, self};
    std::vector<char*> argv;
    for (std::string& arg : args)
      argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_t runner = 0;
    ASSERT_EQ(posix_spawn(&runner, self.c_str(), nullptr, nullptr, argv.data(), environ), 0);
    EXPECT_TRUE(AreReady(folder, {0}));
    // Runner, rank, daemon.
    EXPECT_TRUE(Eventually([&] { return ProcessesNaming(path).size() == 3; }));
    if (supervisor_is_stopped) kill(ChildrenOf(runner).at(0), SIGSTOP);
    kill(runner, SIGKILL);
    EXPECT_EQ(waitpid(runner, nullptr, 0), runner);
    EXPECT_TRUE(Eventually([&] { return ProcessesNaming(path).empty(); }));
  }
}

TEST_F(SupervisorTest, WhenTheSupervisorIsKilledTheRanksEndAndTheReportSaysSo) {
  SupervisedProcess process = Start({StayingRank(folder, 0), StayingRank(folder, 1)});
  ASSERT_TRUE(AreReady(folder, {0, 1}));
  const std::vector<pid_t> children = ChildrenOf(getpid());
  ASSERT_EQ(children.size(), 1u);
  kill(children[0], SIGKILL);
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 0);
  EXPECT_EQ(report.exit_code, 128 + SIGKILL);
  EXPECT_THAT(report.exit_codes, IsEmpty());
  EXPECT_THAT(report.log_tail, HasSubstr("supervisor"));
  // `sleep` is a grandchild and outlives its shell; it does not name the folder.
  EXPECT_TRUE(Eventually([&] { return ProcessesNaming(folder.path()).empty(); }));
}

TEST_F(SupervisorTest, AStoppedSupervisorIsContinuedToEndItsRanks) {
  SupervisedProcess process = Start({StayingRank(folder, 0)});
  ASSERT_TRUE(AreReady(folder, {0}));
  kill(ChildrenOf(getpid()).at(0), SIGSTOP);
  process.Stop(milliseconds(0));
  EXPECT_TRUE(WaitForReport(process).killed_by_us);
  ExpectNothingLeft(folder);
}

// Also where one that hangs in the kernel has much more time.
TEST_F(SupervisorTest, ASupervisorThatStaysStoppedIsKilledWithEverythingBelowIt) {
  for (const milliseconds frozen : {milliseconds(100), milliseconds(3'600'000)}) {
    TempFolder folder;
    GraceTimes grace = kShortGrace;
    grace.frozen = frozen;
    const std::string script = "\"$1\" daemon \"$0\"; : > \"$0\"/ready0; sleep 1000";
    SupervisedProcess process = SupervisedProcess::Start(
        SelfBinary(), {ShellRank(folder, 0, script)}, folder.path(), grace);
    ASSERT_TRUE(AreReady(folder, {0}));
    const pid_t supervisor = ChildrenOf(getpid()).at(0);
    // A signal that it cannot act on: what it would send its ranks is held back.
    ASSERT_EQ(process.Poll(), std::nullopt);
    kill(supervisor, SIGSTOP);
    process.Stop(milliseconds(0));
    kill(supervisor, SIGSTOP);
    // If it ran between Stop's SIGCONT and this signal, it may have ended its ranks itself.
    const ExitReport exit = WaitForReport(process);
    EXPECT_TRUE(exit.first_failed_rank == 0 || exit.killed_by_us);
    EXPECT_TRUE(Eventually([&] { return ProcessesNaming(folder.path()).empty(); }));
    ExpectNothingLeft(folder);
  }
}

TEST_F(SupervisorTest, SigtermToTheSupervisorStopsTheRanks) {
  SupervisedProcess process = Start({StayingRank(folder, 0)}, kShortGrace);
  ASSERT_TRUE(AreReady(folder, {0}));
  kill(ChildrenOf(getpid()).at(0), SIGTERM);
  EXPECT_TRUE(WaitForReport(process).killed_by_us);
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, RanksStartWithNoStrangeFilesOrSignals) {
  const int leaked = dup2(STDERR_FILENO, 57);  // Inherited across exec.
  ASSERT_EQ(leaked, 57);
  sigset_t mask, old_mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  sigprocmask(SIG_BLOCK, &mask, &old_mask);
  const auto old_handler = signal(SIGUSR2, SIG_IGN);
  const ExitReport report =
      RunRanks(folder, {ShellRank(folder, 0,
                                  "ls /proc/$$/fd; readlink /proc/$$/fd/0; "
                                  "exec sed -n -E 's/Sig(Blk|Ign):.//p' /proc/self/status")});
  signal(SIGUSR2, old_handler);
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  close(leaked);
  std::istringstream words(report.log_tail);
  std::vector<std::string> seen{std::istream_iterator<std::string>(words), {}};
  ASSERT_EQ(seen.size(), 7u) << report.log_tail;
  // 32 and 33 belong to the C library, which ignores them until it starts a thread.
  const uint64_t ignored = std::stoull(seen.back(), nullptr, 16) & ~uint64_t{0x180000000};
  seen.pop_back();
  EXPECT_THAT(seen, ElementsAre("0", "1", "2", "3", "/dev/null", "0000000000000000"));
  EXPECT_EQ(ignored, 0u);
}

TEST_F(SupervisorTest, RanksShareAMemoryFile) {
  const std::string file = std::string("/proc/$$/fd/$") + engine::kEnvGroupFd;
  const ExitReport report = RunRanks(
      folder, {ShellRank(folder, 0, "echo hello > " + file),
               ShellRank(folder, 1, "until grep -q hello " + file + "; do sleep 0.01; done")});
  EXPECT_THAT(report.exit_codes, ElementsAre(0, 0));
}

TEST_F(SupervisorTest, EnvironmentAndFolderAreAsAsked) {
  std::filesystem::create_directory(folder / "elsewhere");
  setenv("DSAT_TEST_OURS", "ours", 1);
  RankCommand rank = ShellRank(folder, 0, "echo $DSAT_TEST_OURS $HOME $EXTRA $(pwd -P)");
  rank.env = {{"HOME", "/replaced"}, {"EXTRA", "a b=c"}};
  RankCommand other = ShellRank(folder, 1, "pwd -P");
  other.work_dir = folder / "elsewhere";
  RunRanks(folder, {rank, other});
  const std::string here = std::filesystem::canonical(folder.path());
  EXPECT_EQ(ReadFile(rank.log_path), "ours /replaced a b=c " + here + "\n");
  EXPECT_EQ(ReadFile(other.log_path), here + "/elsewhere\n");
}

TEST_F(SupervisorTest, RanksAreTheFirstToGoWhenHostMemoryRunsOut) {
  const ExitReport report =
      RunRanks(folder, {ShellRank(folder, 0, "cat /proc/self/oom_score_adj")});
  EXPECT_GE(std::stoi(report.log_tail), 500);
}

TEST_F(SupervisorTest, ACommandThatIsNotThereIsAFailedRankWithItsNameInTheLog) {
  RankCommand rank = ShellRank(folder, 0, "");
  rank.argv = {"no-such-program-here"};
  const ExitReport report = RunRanks(folder, {rank});
  EXPECT_EQ(report.first_failed_rank, 0);
  EXPECT_EQ(report.exit_code, 127);
  EXPECT_THAT(report.log_tail, HasSubstr("no-such-program-here: No such file"));
}

TEST_F(SupervisorTest, ALogThatCannotBeWrittenIsReportedAndStopsTheRanksBeforeIt) {
  RankCommand rank = ShellRank(folder, 1, "exit 0");
  rank.log_path = folder / "no-folder/rank1.log";
  const ExitReport report = RunRanks(folder, {StayingRank(folder, 0), rank});
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_EQ(report.exit_code, 127);
  EXPECT_THAT(report.log_tail, HasSubstr("no-folder/rank1.log"));
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, AStopThatComesWithTheOrderIsHeard) {
  for (int i = 0; i < 5; ++i) {
    SupervisedProcess process = Start({StayingRank(folder, 0)}, kShortGrace);
    process.Stop(milliseconds(100));
    EXPECT_TRUE(WaitForReport(process).killed_by_us);
  }
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, ASupervisorThatIsNotThereIsAnError) {
  EXPECT_THAT(RefusalOf(
                  [&] {
                    SupervisedProcess::Start(folder / "nothing", {ShellRank(folder, 0, "exit 0")},
                                             folder.path());
                  },
                  ErrorCode::kNotFound),
              HasSubstr("nothing supervise"));
}

TEST_F(SupervisorTest, FastStartsLeakNeitherFilesNorZombies) {
  const auto num_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = num_files();
  for (int i = 0; i < 50; ++i) {
    SupervisedProcess process = Start({ShellRank(folder, 0, "exit 0")});
    if (i % 2 == 1) continue;  // The destructor ends it.
    EXPECT_EQ(WaitForReport(process).first_failed_rank, -1);
  }
  EXPECT_EQ(num_files(), before);
  ExpectNothingLeft(folder);
}

TEST_F(SupervisorTest, LongArgumentsArriveWhole) {
  RankCommand rank = ShellRank(folder, 0, "echo ${#LONG} ${#1}");
  rank.argv.push_back(std::string(100'000, 'a'));  // More than a socket's buffer in all.
  rank.env["LONG"] = std::string(120'000, 'b');
  std::vector<RankCommand> ranks;
  for (int i = 0; i < 4; ++i) {
    ranks.push_back(rank);
    ranks.back().log_path = folder / ("rank" + std::to_string(i) + ".log");
  }
  RunRanks(folder, ranks);
  for (const RankCommand& command : ranks) {
    EXPECT_EQ(ReadFile(command.log_path), "120000 100000\n");
  }
}

TEST(ProcessTreeTest, ListsTheChildrenOfAProcess) {
  const pid_t child = fork();
  if (child == 0) {
    while (true)
      pause();
  }
  EXPECT_THAT(ChildrenOf(getpid()), ElementsAre(child));
  EXPECT_THAT(ChildrenOf(child), IsEmpty());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(ChildrenOf(getpid()), IsEmpty());
}

}  // namespace
}  // namespace dsat
