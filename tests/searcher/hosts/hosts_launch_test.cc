// Starts ranks on several hosts, which this machine simulates: their reports, and that no process
// survives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "searcher/hosts/reach_hosts.h"
#include "searcher/processes/exit_report.h"
#include "tests/base/error_code.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kFakeSsh = std::string(DSAT_SOURCE_DIR) + "/tests/searcher/hosts/fake_ssh.sh";

std::vector<LaunchHost> Hosts(const std::vector<std::string>& names) {
  std::vector<LaunchHost> hosts;
  for (const std::string& name : names)
    hosts.push_back({.name = name, .reach = {kFakeSsh, name}});
  return hosts;
}

// The hosts see by a file in the folder that they share it.
RankCommand RankOn(const TempFolder& folder, int64_t host, int rank, const std::string& script) {
  RankCommand command = ShellRank(folder, rank, script);
  command.host = host;
  command.files = {folder / "task.json"};
  std::ofstream(command.files[0]) << "the task";
  return command;
}

// On a host that cannot see that.
RankCommand RankApart(const TempFolder& folder, int64_t host, int rank, const std::string& script) {
  RankCommand command = RankOn(folder, host, rank, script);
  command.files.clear();
  return command;
}

RankCommand StayingRank(const TempFolder& folder, int64_t host, int rank) {
  return RankOn(folder, host, rank,
                ": > \"$0\"/ready" + std::to_string(rank) + "; while :; do sleep 5; done");
}

SupervisedProcess StartOn(const TempFolder& folder, const std::vector<std::string>& hosts,
                          const std::vector<RankCommand>& ranks,
                          const GraceTimes& grace = kShortGrace) {
  return SupervisedProcess::Start(SelfBinary(), ranks, folder.path(), grace, Hosts(hosts));
}

class HostsLaunchTest : public testing::Test {
 protected:
  TempFolder folder;
};

TEST_F(HostsLaunchTest, RanksOfSeveralHostsAreOneReport) {
  const std::string script = "echo rank on $DSAT_TEST_HOST";
  SupervisedProcess process =
      StartOn(folder, {"w0", "w1"},
              {RankApart(folder, 0, 0, script), RankApart(folder, 0, 1, script),
               RankOn(folder, 1, 2, script)});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, -1);
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_THAT(report.exit_codes, ElementsAre(0, 0, 0));
  // One host shares the folder, and the logs of the other are copied back.
  EXPECT_EQ(ReadFile(folder / "rank0.log"), "rank on w0\n");
  EXPECT_EQ(ReadFile(folder / "rank1.log"), "rank on w0\n");
  EXPECT_EQ(ReadFile(folder / "rank2.log"), "rank on w1\n");
  ExpectNothingLeft(folder);
}

// A command in place of ssh that runs `script`.
std::string MakeSsh(const TempFolder& folder, const std::string& script) {
  const std::string ssh = folder / "ssh";
  std::ofstream(ssh) << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  return ssh;
}

// A rank on one host, which `ssh` reaches.
SupervisedProcess StartBy(const std::string& ssh, const TempFolder& folder,
                          const std::string& script) {
  return SupervisedProcess::Start(SelfBinary(), {RankApart(folder, 0, 0, script)}, folder.path(),
                                  kShortGrace, {{.name = "w0", .reach = {ssh, "w0"}}});
}

TEST_F(HostsLaunchTest, AHostsOwnFolderIsRemoved) {
  SupervisedProcess process = StartOn(folder, {"w0"}, {RankApart(folder, 0, 0, "pwd")});
  EXPECT_EQ(WaitForReport(process).exit_code, 0);
  const std::string path = Trimmed(ReadFile(folder / "rank0.log"));
  EXPECT_THAT(path, HasSubstr("/dsat-"));
  EXPECT_NE(path, folder.path());
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(HostsLaunchTest, AHostThatCannotStartRanksIsLost) {
  const std::string ssh = MakeSsh(folder, "TMPDIR=/no/folder exec " + kFakeSsh + " \"$@\"");
  SupervisedProcess process = StartBy(ssh, folder, "true");
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.lost_host, 0);
  EXPECT_THAT(
      DescribeExit(report, "rank"),
      AllOf(HasSubstr("rank 0 failed because of its host: host w0: "), HasSubstr("/no/folder")));
}

TEST_F(HostsLaunchTest, ThisMachineCanBeOneOfThem) {
  std::vector<LaunchHost> hosts = Hosts({"w1"});
  hosts.insert(hosts.begin(), LaunchHost{});
  const std::string script = "echo on ${DSAT_TEST_HOST:-this machine}";
  SupervisedProcess process = SupervisedProcess::Start(
      SelfBinary(), {RankOn(folder, 0, 0, script), RankOn(folder, 1, 1, script)}, folder.path(),
      kShortGrace, hosts);
  EXPECT_THAT(WaitForReport(process).exit_codes, ElementsAre(0, 0));
  EXPECT_EQ(ReadFile(folder / "rank0.log"), "on this machine\n");
  EXPECT_EQ(ReadFile(folder / "rank1.log"), "on w1\n");
}

TEST_F(HostsLaunchTest, ARankThatFailsOnOneHostEndsThoseOnTheOthers) {
  SupervisedProcess process =
      StartOn(folder, {"w0", "w1"},
              {StayingRank(folder, 0, 0), StayingRank(folder, 1, 1),
               RankOn(folder, 1, 2,
                      "while [ ! -e \"$0\"/ready0 ] || [ ! -e \"$0\"/ready1 ]; do sleep 0.01; "
                      "done; echo its last words; exit 7")});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 2);
  EXPECT_EQ(report.exit_code, 7);
  EXPECT_FALSE(report.killed_by_us);
  EXPECT_THAT(report.exit_codes, ElementsAre(128 + SIGTERM, 128 + SIGTERM, 7));
  EXPECT_THAT(report.log_tail, HasSubstr("its last words"));
  ExpectNothingLeft(folder);
}

TEST_F(HostsLaunchTest, RanksElsewhereMayFailByThemselvesFirst) {
  SupervisedProcess process =
      StartOn(folder, {"w0", "w1"},
              {RankOn(folder, 0, 0,
                      // Until the end of the other's supervisor has been seen.
                      "while [ ! -e \"$0\"/pid ]; do sleep 0.01; done; "
                      "while kill -0 $(cat \"$0\"/pid) 2>/dev/null; do sleep 0.01; done; exit 5"),
               RankOn(folder, 1, 1, "echo $PPID > \"$0\"/new; mv \"$0\"/new \"$0\"/pid; exit 7")},
              {milliseconds(15000), milliseconds(100)});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_THAT(report.exit_codes, ElementsAre(5, 7));
}

TEST_F(HostsLaunchTest, ARankThatCrashedElsewhereIsTheCause) {
  SupervisedProcess process =
      StartOn(folder, {"w0", "w1"},
              {RankOn(folder, 0, 0, ": > \"$0\"/failed; exit 1"),
               RankOn(folder, 1, 1,
                      "while [ ! -e \"$0\"/failed ]; do sleep 0.01; done; sleep 0.2; "
                      "kill -KILL $$")},
              {milliseconds(15000), milliseconds(100)});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_EQ(report.exit_code, 128 + SIGKILL);
}

TEST_F(HostsLaunchTest, AStopEndsTheRanksOfAllHosts) {
  SupervisedProcess process =
      StartOn(folder, {"w0", "w1"}, {StayingRank(folder, 0, 0), StayingRank(folder, 1, 1)});
  ASSERT_TRUE(AreReady(folder, {0, 1}));
  process.Stop(milliseconds(100));
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, -1);
  EXPECT_TRUE(report.killed_by_us);
  ExpectNothingLeft(folder);
}

TEST_F(HostsLaunchTest, EachHostRemovesTheBuffersOfItsRanksEvenIfTheyAreStopped) {
  const int64_t port = 100'000 + getpid();  // No real rendezvous has it.
  std::vector<RankCommand> ranks = {StayingRank(folder, 0, 0), StayingRank(folder, 1, 1)};
  std::vector<std::string> buffers;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    buffers.push_back(fmt::format("/dev/shm/deepspeed_allreduce_buffer_{}_127.0.0.{}_{}_{}",
                                  getuid(), rank + 2, port, rank));
    std::ofstream(buffers.back()) << "buffer";
    ranks[rank].buffers_port = rank == 0 ? 0 : port;  // The first host does not know it.
  }
  SupervisedProcess process = StartOn(folder, {"w0", "w1"}, ranks);
  ASSERT_TRUE(AreReady(folder, {0, 1}));
  EXPECT_TRUE(std::filesystem::exists(buffers[1]));
  process.Stop(milliseconds(100));
  WaitForReport(process);
  for (const std::string& buffer : buffers)
    EXPECT_FALSE(std::filesystem::exists(buffer)) << "the hosts of this test share a folder";
}

TEST_F(HostsLaunchTest, TheDestructorLeavesNothingOnAnyHost) {
  {
    SupervisedProcess process =
        StartOn(folder, {"w0", "w1"}, {StayingRank(folder, 0, 0), StayingRank(folder, 1, 1)});
    ASSERT_TRUE(AreReady(folder, {0, 1}));
  }
  ExpectNothingLeft(folder);
}

TEST_F(HostsLaunchTest, AHostThatCannotBeReachedIsAFailedRankInSshsWords) {
  SupervisedProcess process =
      StartOn(folder, {"w0", "nowhere"}, {StayingRank(folder, 0, 0), StayingRank(folder, 1, 1)});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_EQ(report.exit_code, 255);
  EXPECT_THAT(report.log_tail, HasSubstr("host nowhere: ssh: Could not resolve hostname nowhere"));
  EXPECT_THAT(report.exit_codes, IsEmpty());
  ExpectNothingLeft(folder);
}

TEST_F(HostsLaunchTest, ALineThatBreaksEndsTheOtherHosts) {
  SupervisedProcess process = StartOn(
      folder, {"w0", "w1"},
      {StayingRank(folder, 0, 0), RankOn(folder, 1, 1,
                                         "while [ ! -e \"$0\"/ready0 ]; do sleep 0.01; done; "
                                         "kill -KILL $PPID; sleep 100")});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 1);
  EXPECT_EQ(report.exit_code, 128 + SIGKILL);
  EXPECT_THAT(report.log_tail, HasSubstr("host w1: the connection ended (exit code 137)"));
  EXPECT_TRUE(Eventually([&] { return ProcessesNaming(folder.path()).empty(); }));
}

TEST_F(HostsLaunchTest, AHostThatHearsNothingOfTheRunnerEndsItsRanks) {
  GraceTimes grace = kShortGrace;
  grace.silence = milliseconds(500);  // Before the runner next says that it is alive.
  SupervisedProcess process = StartOn(folder, {"w0"}, {StayingRank(folder, 0, 0)}, grace);
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 0);
  EXPECT_THAT(report.log_tail, HasSubstr("host w0: the connection ended"));
  EXPECT_TRUE(Eventually([&] { return ProcessesNaming(folder.path()).empty(); }));
}

TEST_F(HostsLaunchTest, AFolderThatMustBeSharedAndIsNotIsARefusalByName) {
  RankCommand rank = RankApart(folder, 0, 0, "exit 0");
  rank.shares_folder = true;
  SupervisedProcess process = StartOn(folder, {"w0"}, {rank});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, 0);
  EXPECT_EQ(report.exit_code, 127);
  EXPECT_THAT(report.log_tail,
              AllOf(HasSubstr("host w0: "), HasSubstr("expected a folder that all hosts share")));
}

// The report of a rank whose host sends `message`.
ExitReport ReportAfter(const TempFolder& folder, const std::string& message) {
  std::ofstream(folder / "message") << message << "\n";
  const std::string ssh =
      MakeSsh(folder, fmt::format("cat '{}'; head -n 1 > /dev/null", folder / "message"));
  SupervisedProcess process = StartBy(ssh, folder, "");
  return WaitForReport(process);
}

std::string ReportWithLog(const std::string& path) {
  return Json{{"report",
               {{"exit",
                 {{"first_failed_rank", -1},
                  {"exit_code", 0},
                  {"not_started", false},
                  {"killed_by_us", false},
                  {"oom_kills", 0},
                  {"exit_codes", {0}},
                  {"log_tail", ""}}},
                {"logs", {{path, "the log"}}}}}}
      .dump();
}

TEST_F(HostsLaunchTest, AHostWritesTheLogsOfItsRanksAndNoOtherFile) {
  ReportAfter(folder, ReportWithLog(folder / "planted"));
  EXPECT_FALSE(std::filesystem::exists(folder / "planted"));
  const std::string log = RankApart(folder, 0, 0, "").log_path;
  ReportAfter(folder, ReportWithLog(log));
  EXPECT_EQ(ReadFile(log), "the log");
}

TEST_F(HostsLaunchTest, AMessageThatNoSupervisorSendsIsAFailureInPlainWords) {
  for (const std::string message : {R"({"report": 7})", R"({"report": {"exit_codes": {}}})"}) {
    TempFolder folder;
    const ExitReport report = ReportAfter(folder, message);
    EXPECT_EQ(report.first_failed_rank, 0);
    EXPECT_THAT(report.log_tail,
                AllOf(HasSubstr("host w0: it sent a message that no supervisor sends"),
                      Not(HasSubstr("json.exception"))));
  }
}

TEST_F(HostsLaunchTest, AnEndlessLineIsNotKept) {
  const std::string ssh = MakeSsh(folder, "tr '\\0' x < /dev/zero");
  SupervisedProcess process = StartBy(ssh, folder, "");
  EXPECT_THAT(WaitForReport(process).log_tail, HasSubstr("host w0: it sent a line above 32.0 MiB"));
}

TEST(ReachHostsTest, ACommandThatTalksForEverIsNoHost) {
  TempFolder folder;
  const Error error = ErrorOf([&] { ReachHosts({{"w0", {0}}}, {.ssh = "yes"}, SelfBinary()); });
  EXPECT_THAT(error.what(), HasSubstr("host w0: it sends text without end; expected a command"));
}

TEST(ReachHostsTest, HostsSayWhoTheyAreAndHowTheySeeUs) {
  const ReachedHosts reached =
      ReachHosts({{"localhost", {0}}, {"w0", {0, 1}}, {"w1", {3}}},
                 {.ssh = kFakeSsh, .environment = {{"NCCL_DEBUG", "INFO"}}}, SelfBinary());
  ASSERT_EQ(reached.hosts.size(), 3u);
  EXPECT_EQ(reached.runner_address, "127.0.0.1");
  EXPECT_THAT(reached.hosts[0].reach, IsEmpty());
  EXPECT_EQ(reached.hosts[0].address, "127.0.0.1") << "as the other hosts see it";
  EXPECT_THAT(reached.hosts[1].reach, Not(IsEmpty()));
  EXPECT_EQ(reached.hosts[1].address, "127.0.0.2");
  EXPECT_EQ(reached.hosts[2].address, "127.0.0.3");
  EXPECT_THAT(reached.hosts[2].slots, ElementsAre(3));
  EXPECT_GE(reached.hosts[2].num_cores, 1);
  EXPECT_EQ(reached.hosts[2].environment.at("NCCL_DEBUG"), "INFO");
}

TEST(ReachHostsTest, AGivenAddressIsTheFirstHosts) {
  const ReachedHosts reached = ReachHosts(
      {{"w0", {0}}, {"w1", {0}}}, {.ssh = kFakeSsh, .master_addr = "10.9.8.7"}, SelfBinary());
  EXPECT_EQ(reached.hosts[0].address, "10.9.8.7");
  EXPECT_EQ(reached.hosts[1].address, "127.0.0.3");
}

std::string ReachError(const std::vector<Host>& hosts, const std::string& ssh,
                       const std::string& binary, ErrorCode code) {
  return RefusalOf([&] { ReachHosts(hosts, {.ssh = ssh}, binary); }, code);
}

TEST(ReachHostsTest, AloneThisMachineNeedsNoSsh) {
  const ReachedHosts reached = ReachHosts({{"localhost", {0, 1}}}, {.ssh = "/no/ssh"}, "/no/dsat");
  EXPECT_TRUE(reached.hosts.at(0).is_listed) << "its ranks get its slots only";
  EXPECT_EQ(reached.runner_address, "");
  EXPECT_THAT(reached.hosts.at(0).reach, IsEmpty());
}

TEST(ReachHostsTest, TwoNamesOfThisMachineAreRefused) {
  EXPECT_THAT(ReachError({{"localhost", {0}}, {"127.0.0.1", {0}}}, "/no/ssh", "/no/dsat",
                         ErrorCode::kInvalidArgument),
              HasSubstr("localhost and 127.0.0.1 are both this machine"));
}

TEST(ReachHostsTest, AGreetingBehindTextWithoutALineEndIsHeard) {
  TempFolder folder;
  const std::string ssh = MakeSsh(folder, "printf 'the title'; exec " + kFakeSsh + " \"$@\"");
  EXPECT_EQ(ReachHosts({{"w1", {0}}}, {.ssh = ssh}, SelfBinary()).hosts.at(0).address, "127.0.0.3");
}

TEST(ReachHostsTest, NamesEveryHostThatDoesNotAnswer) {
  EXPECT_THAT(ReachError({{"no1", {0}}, {"w0", {0}}, {"no2", {0}}}, kFakeSsh, SelfBinary(),
                         ErrorCode::kUnavailable),
              AllOf(HasSubstr("host no1: ssh: Could not resolve hostname no1"),
                    HasSubstr("host no2: ssh: Could not"), Not(HasSubstr("w0")),
                    HasSubstr("expected hosts that `" + kFakeSsh + " HOST true` reaches")));
}

TEST(ReachHostsTest, SaysWhereItLooksForDsat) {
  EXPECT_THAT(
      ReachError({{"w0", {0}}}, kFakeSsh, "/no/such dsat", ErrorCode::kUnavailable),
      AllOf(HasSubstr("not found"), HasSubstr("expected dsat there at /no/such dsat, as on")));
}

TEST(ReachHostsTest, AnotherVersionIsRefused) {
  TempFolder folder;
  const std::string ssh =
      MakeSsh(folder,
              "echo Welcome to the machine\n"
              "echo '{\"hello\": {\"version\": \"0.0.1\", \"num_cores\": 1, \"address\": \"\", "
              "\"runner_address\": \"\"}}'\n"
              "cat > /dev/null");
  EXPECT_THAT(ReachError({{"old", {0}}}, ssh, SelfBinary(), ErrorCode::kFailedPrecondition),
              HasSubstr("host old: it has dsat 0.0.1, but this machine has"));
}

}  // namespace
}  // namespace dsat
