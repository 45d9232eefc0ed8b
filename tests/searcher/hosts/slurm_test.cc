// Jobs of a Slurm that fake_slurm.sh plays; tests/cli/real_slurm_test.cc has the real one.
#include "searcher/hosts/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "searcher/hosts/slurm_job.h"
#include "searcher/launch/rank_places.h"
#include "tests/base/error_code.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

class SlurmTest : public testing::Test {
 protected:
  SlurmTest() {
    for (const char* name : {"salloc", "srun", "scontrol", "squeue"})
      fs::create_symlink(std::string(DSAT_SOURCE_DIR) + "/tests/searcher/hosts/fake_slurm.sh",
                         folder / name);
    setenv("PATH", (folder.path() + ":" + path_).c_str(), 1);
    setenv("FAKE_SLURM", folder.path().c_str(), 1);
    setenv("FAKE_DEVICES", "", 1);
  }
  ~SlurmTest() override {
    setenv("PATH", path_.c_str(), 1);
    for (const char* name : {"FAKE_SLURM", "FAKE_DEVICES", "SLURM_JOB_ID", "SLURM_NTASKS",
                             "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"})
      unsetenv(name);
  }

  void Touch(const std::string& name, const std::string& text = "") const {
    std::ofstream(folder / name) << text;
  }

  // How often a command has been called.
  int64_t Calls(const std::string& command) const {
    std::istringstream lines(ReadOrEmpty(folder / "calls"));
    int64_t calls = 0;
    for (std::string line; std::getline(lines, line);)
      calls += line.starts_with(command + " ") ? 1 : 0;
    return calls;
  }

  // The jobs of trials of `slots` slots.
  static SlurmJobs Planned(int64_t slots, int64_t slots_per_node, const std::string& args = "") {
    ExperimentSpec spec;
    spec.entrypoint = {"builtin"};
    spec.slots_per_trial = slots;
    SlurmJobs jobs{.args = SplitSlurmArgs(args), .slots_per_node = slots_per_node};
    PlanJobs(spec, &jobs);
    return jobs;
  }

  static std::vector<LaunchHost> Granted(SlurmJob& job) {
    std::optional<std::vector<LaunchHost>> hosts;
    EXPECT_TRUE(Eventually([&] { return (hosts = job.Poll()).has_value(); }));
    return hosts.value_or(std::vector<LaunchHost>{});
  }

  // The error that Poll throws at last.
  static std::string Refusal(SlurmJob& job) {
    std::string words;
    EXPECT_TRUE(Eventually([&] {
      try {
        job.Poll();
      } catch (const Error& error) {
        words = error.what();
      }
      return !words.empty();
    }));
    return words;
  }

  std::string NewPath() { return folder / ("job" + std::to_string(num_jobs_++)); }

  // Has a process request a job with `path` and kill itself when that has a number.
  void RequestAndDie(const SlurmJobs& jobs, const std::string& path) {
    const pid_t pid = fork();
    if (pid == 0) {
      SlurmJob job(jobs, "name", SelfBinary(), path);
      while (job.number().empty())
        job.Poll();
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status));
  }

  TempFolder folder;
  int num_jobs_ = 0;
  std::string path_ = std::getenv("PATH");
};

TEST_F(SlurmTest, TheNodesOfAJobAreHostsWithItsTasksAsSlots) {
  const SlurmNodes nodes = ParseNodes("dsat-nodes 12 2(x2),1 n1 n2 n3");
  EXPECT_EQ(nodes.job, "12");
  EXPECT_THAT(nodes.hosts, ElementsAre(Host{"n1", {0, 1}}, Host{"n2", {0, 1}}, Host{"n3", {0}}));
  EXPECT_THAT(ParseNodes("salloc: Granted job allocation 12").hosts, IsEmpty());
  EXPECT_THAT(ParseNodes("dsat-nodes 12").hosts, IsEmpty());
  EXPECT_THAT(ParseNodes("dsat-nodes 12 1(x999999),1 n1").hosts, ElementsAre(Host{"n1", {0}}));
}

TEST_F(SlurmTest, AJobHasTheSizeOfATrial) {
  EXPECT_THAT(Planned(4, 0).args, ElementsAre("--nodes=1", "--ntasks=4", "--ntasks-per-node=4"));
  EXPECT_THAT(Planned(3, 8).args, ElementsAre("--nodes=1", "--ntasks=3", "--ntasks-per-node=3"));
  EXPECT_THAT(Planned(5, 2, "-p 'my gpus'").args,
              ElementsAre("--nodes=3", "--ntasks=6", "--ntasks-per-node=2", "-p", "my gpus"));
}

TEST_F(SlurmTest, TrialsOnGpusAskForThemUnlessTheUserDoes) {
  ExperimentSpec spec;
  spec.entrypoint = {"builtin"};
  spec.device = "cuda";
  spec.slots_per_trial = 4;
  for (const auto& [given, count] : std::vector<std::pair<std::string, int>>{
           {"", 1}, {"--exclusive", 1}, {"--gres=gpu:4", 0}, {"-G4", 0}}) {
    SlurmJobs jobs{.args = SplitSlurmArgs(given)};
    PlanJobs(spec, &jobs);
    EXPECT_EQ(std::count(jobs.args.begin(), jobs.args.end(), "--gpus-per-node=4"), count) << given;
  }
}

TEST_F(SlurmTest, ATimeAboveThatOfThePartitionIsRefused) {
  // The partition allows 1-02:00:00.
  for (const char* args : {"", "--time=1560", "-t 1-2", "-t60:00", "--time 26:00:00",
                           "--time=2-0 --time=5", "-t 2-0 -p a,b", "--time=unknown"})
    EXPECT_NO_THROW(Planned(4, 0, args)) << args;
  for (const char* args : {"--time=1561", "-t 1-2:00:01", "-t1-3", "--time 26:00:01", "--time=0",
                           "--time=5 --time=2-0 -p debug"}) {
    EXPECT_THAT(ErrorOf([&] { Planned(4, 0, args); }).what(),
                HasSubstr("above the limit of partition debug, 1-02:00:00"))
        << args;
  }
}

TEST_F(SlurmTest, WhatSallocReadsFromTheEnvironmentIsChecked) {
  setenv("SALLOC_PARTITION", "long, of \"a\"", 1);
  EXPECT_NO_THROW(Planned(4, 0, "-t 1-2"));
  EXPECT_THAT(ReadOrEmpty(folder / "tested"), HasSubstr("SLURM_PARTITION=long, of \"a\"\n"));
  setenv("SALLOC_PARTITION", "long", 1);
  setenv("SALLOC_TIMELIMIT", "2-0", 1);
  EXPECT_THROW(Planned(4, 0), Error);
  EXPECT_NO_THROW(Planned(4, 0, "-t 5"));
  unsetenv("SALLOC_PARTITION");
  unsetenv("SALLOC_TIMELIMIT");
}

TEST_F(SlurmTest, ArgsThatNeedAShellAreRefused) {
  EXPECT_THAT(SplitSlurmArgs(""), IsEmpty());
  EXPECT_THAT(SplitSlurmArgs("--time=1 -C \"a&b\""), ElementsAre("--time=1", "-C", "a&b"));
  for (const char* args : {"-p $QUEUE", "-p 'a", "-p a; true"})
    EXPECT_THROW(SplitSlurmArgs(args), Error) << args;
}

TEST_F(SlurmTest, AJobWaitsIsGrantedAndIsGivenBack) {
  {
    SlurmJob job(Planned(4, 2, "--account=a"), "name", SelfBinary(), NewPath());
    ASSERT_TRUE(Eventually([&] { return !job.Poll() && job.queued(); }));
    EXPECT_EQ(job.number(), "7");
    Touch("free");
    const std::vector<LaunchHost> hosts = Granted(job);
    ASSERT_EQ(hosts.size(), 2u);
    EXPECT_FALSE(job.queued());
    EXPECT_EQ(hosts[1].name, "w1");
    EXPECT_THAT(hosts[1].slots, ElementsAre(0, 1));
    EXPECT_EQ(hosts[1].address, "127.0.0.1");
    EXPECT_FALSE(fs::exists(folder / "returned"));
  }
  EXPECT_TRUE(fs::exists(folder / "returned"));
  EXPECT_THAT(ReadFile(folder / "calls"),
              HasSubstr("salloc --job-name=name --nodes=2 --ntasks=4 --ntasks-per-node=2 "
                        "--account=a --kill-command=TERM /bin/sh -c"));
  EXPECT_THAT(ProcessesNaming(folder.path()), IsEmpty());
}

TEST_F(SlurmTest, AJobInTheQueueIsGivenBack) {
  {
    SlurmJob job(Planned(2, 0), "name", SelfBinary(), NewPath());
    ASSERT_TRUE(Eventually([&] { return !job.Poll() && job.queued(); }));
  }
  EXPECT_TRUE(Eventually([&] { return fs::exists(folder / "returned"); }));
  EXPECT_TRUE(Eventually([&] { return ProcessesNaming(folder.path()).empty(); }));
}

TEST_F(SlurmTest, TheJobOfAKilledProcessIsTakenUp) {
  const SlurmJobs jobs = Planned(2, 0);
  RequestAndDie(jobs, NewPath());
  Touch("free");
  ASSERT_TRUE(Eventually(
      [&] { return ReadFile(folder / "job0.log").find("dsat-nodes 7") != std::string::npos; }));
  Touch("steps", "7.extern\n7.0\n");
  {
    SlurmJob job(jobs, "name", SelfBinary(), folder / "job0");
    EXPECT_TRUE(job.taken_up());
    EXPECT_EQ(CodeOf([&] { SlurmJob(jobs, "name", SelfBinary(), folder / "job0"); }),
              ErrorCode::kFailedPrecondition);
    EXPECT_TRUE(Eventually([&] { return !job.Poll() && Calls("squeue") > 1; }));
    EXPECT_EQ(job.number(), "7");
    EXPECT_EQ(Calls("srun"), 1);  // The call is PlanJobs's: steps of the killed process still run.
    Touch("steps", "7.extern\n");
    EXPECT_EQ(Granted(job).size(), 2u);
    EXPECT_FALSE(fs::exists(folder / "returned"));
  }
  EXPECT_TRUE(fs::exists(folder / "returned"));
  EXPECT_EQ(Calls("salloc"), 1);
  EXPECT_TRUE(Eventually([&] { return ProcessesNaming(folder.path()).empty(); }));
}

TEST_F(SlurmTest, AnOptionThatOnlySrunKnowsIsRefusedBeforeAJobIsRequested) {
  const Error error = ErrorOf([&] { Planned(2, 0, "--export=ALL"); });
  EXPECT_THAT(error.what(), HasSubstr("salloc: unrecognized option '--export=ALL'"));
  EXPECT_EQ(Calls("salloc"), 0);
}

TEST_F(SlurmTest, AJobOfOtherWordsIsGivenBack) {
  RequestAndDie(Planned(2, 0), NewPath());
  SlurmJob job(Planned(2, 0, "--account=a"), "name", SelfBinary(), folder / "job0");
  EXPECT_FALSE(job.taken_up());
  EXPECT_TRUE(fs::exists(folder / "returned"));
  EXPECT_TRUE(Eventually([&] { return Calls("salloc") == 2; }));
}

TEST_F(SlurmTest, AJobThatNobodyTakesUpIsGivenBack) {
  for (const bool is_granted : {false, true}) {
    if (is_granted) Touch("free");
    SlurmJobs jobs = Planned(2, 0);
    jobs.keep = std::chrono::seconds(1);
    RequestAndDie(jobs, NewPath());
    EXPECT_TRUE(Eventually([&] { return fs::exists(folder / "returned"); })) << is_granted;
    EXPECT_TRUE(Eventually([&] { return ProcessesNaming(folder.path()).empty(); }));
    fs::remove(folder / "returned");
  }
}

TEST_F(SlurmTest, WhatGoesWrongIsSaidInSlurmsWords) {
  Touch("refused");
  SlurmJob refused(Planned(2, 0), "name", SelfBinary(), NewPath());
  EXPECT_THAT(Refusal(refused),
              HasSubstr("Slurm gives no job: salloc: error: Job submit/allocate failed: no such"));
  fs::remove(folder / "refused");
  Touch("revoked");
  SlurmJob revoked(Planned(2, 0), "name", SelfBinary(), NewPath());
  EXPECT_THAT(Refusal(revoked), HasSubstr("error: Requested node configuration is not available"));
  fs::remove(folder / "revoked");
  Touch("free");
  EXPECT_EQ(WhySlurmEnded("7"), "");
  Touch("state", "TIMEOUT");
  EXPECT_EQ(WhySlurmEnded("7"), "Slurm ended job 7: TIMEOUT (TimeLimit)");
  SlurmJob elsewhere(Planned(2, 0), "name", "/nowhere/dsat", NewPath());
  EXPECT_THAT(Refusal(elsewhere), AllOf(HasSubstr("job 7 of Slurm: host w0: "),
                                        HasSubstr("expected dsat there at /nowhere/dsat"),
                                        HasSubstr("expected nodes on which srun starts dsat")));
}

TEST_F(SlurmTest, TheDevicesOfAJobAreItsSlots) {
  setenv("FAKE_DEVICES", "2,5,6", 1);
  Touch("free");
  SlurmJob job(Planned(2, 0), "name", SelfBinary(), NewPath());
  LaunchRequest request;
  request.hosts = Granted(job);
  ASSERT_EQ(request.hosts.size(), 2u);
  EXPECT_THAT(request.hosts[0].slots, ElementsAre(0, 1, 2));
  request.slots = {{0, 1}, {0, 2}};
  EXPECT_THAT(DeviceEnvironment(request, 0), ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "5,6")));
}

TEST_F(SlurmTest, FewerDevicesThanTheTrialNeedsAreRefused) {
  setenv("FAKE_DEVICES", "2", 1);
  Touch("free");
  SlurmJob job(Planned(3, 0), "name", SelfBinary(), NewPath());
  EXPECT_EQ(Refusal(job), "job 7 of Slurm has fewer slots than the 3 of a trial");
}

TEST_F(SlurmTest, InsideOfAJobItsNodesAreTheHosts) {
  for (const auto& [name, value] : std::vector<std::pair<const char*, const char*>>{
           {"SLURM_JOB_ID", "9"}, {"SLURM_NTASKS", "6"}, {"SLURM_JOB_NODELIST", "w[0-1]"}})
    setenv(name, value, 1);
  EXPECT_THROW(NodesOfThisJob(0), Error);
  setenv("SLURM_TASKS_PER_NODE", "3(x2)", 1);
  EXPECT_THAT(NodesOfThisJob(0).hosts, ElementsAre(Host{"w0", {0, 1, 2}}, Host{"w1", {0, 1, 2}}));
  const SlurmNodes nodes = NodesOfThisJob(1);
  EXPECT_EQ(nodes.job, "9");
  EXPECT_THAT(nodes.hosts, ElementsAre(Host{"w0", {0}}, Host{"w1", {0}}));
}

// The devices of a job are known only when it runs.
TEST_F(SlurmTest, DevicesWithNamesAreRefusedWhereTheLauncherReadsNumbers) {
  setenv("FAKE_DEVICES", "GPU-0a,GPU-0b", 1);
  Touch("free");
  ExperimentSpec spec;
  spec.entrypoint = {"torchrun", "train.py"};
  spec.slots_per_trial = 2;
  spec.device_memory_bytes = 1;
  SlurmJobs jobs{.args = {"--gpus-per-node=2"}};
  PlanJobs(spec, &jobs);
  SlurmJob accepted(jobs, "name", SelfBinary(), NewPath());
  EXPECT_EQ(Granted(accepted).size(), 2u);
  jobs.spec.entrypoint[0] = "deepspeed";
  SlurmJob refused(jobs, "name", SelfBinary(), NewPath());
  EXPECT_THAT(Refusal(refused), AllOf(HasSubstr("CUDA_VISIBLE_DEVICES has GPU-0a"),
                                      HasSubstr("`deepspeed` reads numbers only")));
}

// Variables that the job has set for itself would be options of srun, and those that srun sets
// would be the numbers of ranks for libraries.
TEST_F(SlurmTest, RanksAndSrunSeeNoTasksOfTheJob) {
  setenv("SLURM_JOB_ID", "9", 1);
  setenv("SLURM_NTASKS", "6", 1);
  RankCommand rank = ShellRank(folder, 0, "echo here $DSAT_TEST_HOST; env | grep ^SLURM_");
  const LaunchHost host{.name = "w1", .reach = ReachBySrun("9", "w1")};
  SupervisedProcess process =
      SupervisedProcess::Start(SelfBinary(), {rank}, folder.path(), kShortGrace, {host});
  const ExitReport report = WaitForReport(process);
  EXPECT_EQ(report.first_failed_rank, -1) << report.log_tail;
  EXPECT_THAT(ReadFile(rank.log_path),
              AllOf(HasSubstr("here w1"), HasSubstr("SLURM_LAUNCH_NODE_IPADDR=127.0.0.1"),
                    Not(HasSubstr("SLURM_NTASKS")), Not(HasSubstr("SLURM_PROCID"))));
  EXPECT_EQ(ReadFile(folder / "seen"), "");
}

}  // namespace
}  // namespace dsat
