// Runs trials as jobs of a real Slurm: the test starts its daemons with two nodes on loopback
// addresses of this machine. Skipped where Slurm is not installed, and for other users than root.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "base/files.h"
#include "base/json.h"
#include "searcher/launch/rank_places.h"
#include "tests/build_folder.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::array kPrograms = {"munged", "slurmctld", "slurmd", "salloc",
                                  "srun",   "scontrol",  "squeue"};

const std::string kExperimentFile = std::string(R"(
entrypoint: builtin
resources: {slots_per_trial: 2, device_memory: 6MiB}
searcher: {name: single, max_length: 6}
max_restarts: 0)") + kSmallTraining;
constexpr char kDsConfig[] = R"({
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 2}
})";

// {0}: the folder of the daemons; {1}, {2}, {3}: ports.
constexpr char kSlurmConf[] = R"(
ClusterName=dsat
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={1}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={0}/munge.socket
StateSaveLocation={0}/state
SlurmdSpoolDir={0}/%n
SlurmctldPidFile={0}/slurmctld.pid
SlurmdPidFile={0}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1
KillWait=2
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={2} CPUs=2
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={3} CPUs=2
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=10 State=UP
)";

// The output of a shell command, without the last newline.
std::string OutputOf(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  std::string text;
  std::array<char, 512> part{};
  while (const size_t count = fread(part.data(), 1, part.size(), pipe.get()))
    text.append(part.data(), count);
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

// Slurm's daemons in a folder of their own, until it is destroyed.
class Cluster {
 public:
  Cluster() {
    for (const char* name : {"state", "n1", "n2"})
      fs::create_directory(dir(name));
    folder_.Write("munge.key", std::string(128, 'k'));
    chmod(dir("munge.key").c_str(), 0600);
    folder_.Write("slurm.conf",
                  fmt::format(kSlurmConf, folder_.Path("."), FreePort(), FreePort(), FreePort()));
    setenv("SLURM_CONF", dir("slurm.conf").c_str(), 1);
    // slurmstepd leaves its parent. Whoever it is must inherit it, so that none is left.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    Start({"munged", "-F", "--force", "--socket=" + dir("munge.socket"),
           "--key-file=" + dir("munge.key"), "--pid-file=" + dir("munge.pid"),
           "--log-file=" + dir("munge.log"), "--seed-file=" + dir("munge.seed")});
    if (!Eventually([this] { return fs::exists(dir("munge.socket")); })) return;
    Start({"slurmctld", "-D", "-i", "-f", dir("slurm.conf")});
    for (const char* node : {"n1", "n2"})
      Start({"slurmd", "-D", "-N", node, "-f", dir("slurm.conf")});
    up_ = Eventually([] { return OutputOf("sinfo -h -o '%t %D' 2>/dev/null") == "idle 2"; });
  }

  ~Cluster() {
    for (; !pids_.empty(); pids_.pop_back()) {
      kill(pids_.back(), SIGTERM);
      WaitFor(pids_.back());
    }
    while (waitpid(-1, nullptr, 0) > 0) {
    }
    unsetenv("SLURM_CONF");
  }

  bool up() const { return up_; }
  std::string Words() const { return ReadFile(dir("words")); }

 private:
  std::string dir(const std::string& name) const { return folder_.Path(name); }

  void Start(std::vector<std::string> words) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      FILE* const words_file = freopen(dir("words").c_str(), "a", stderr);
      if (words_file == nullptr || freopen(dir("words").c_str(), "a", stdout) == nullptr)
        _exit(126);
      std::vector<char*> argv;
      for (std::string& word : words)
        argv.push_back(word.data());
      argv.push_back(nullptr);
      setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    pids_.push_back(pid);
  }

  Workspace folder_;
  std::vector<pid_t> pids_;
  bool up_ = false;
};

class RealSlurmTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (geteuid() == 0 && Missing().empty()) cluster = std::make_unique<Cluster>();
  }
  static void TearDownTestSuite() { cluster.reset(); }

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can start Slurm's daemons";
    if (!Missing().empty()) GTEST_SKIP() << Missing() << " is not installed";
    if (!cluster->up()) GTEST_SKIP() << "Slurm does not start here: " << cluster->Words();
    work.Write("deepspeed.yaml", kExperimentFile);
    work.Write("ds_config.json", kDsConfig);
  }

  static std::string Missing() {
    for (const char* program : kPrograms) {
      const std::string name = program;
      if (!fs::exists("/usr/sbin/" + name) && !fs::exists("/usr/bin/" + name)) return name;
    }
    return "";
  }

  static std::vector<std::string> OnSlurm(std::vector<std::string> args) {
    args.insert(args.end(), {"--launcher", "slurm", "--slurm-slots-per-node", "1"});
    return args;
  }

  // Starts a training that does not end by itself.
  pid_t StartTraining() const {
    return work.StartDsat(
        OnSlurm({"train", "deepspeed.yaml", "--out", "out", "--steps", "100000000"}), "train");
  }

  static std::string Jobs() { return OutputOf("squeue -h -o '%i %j %T %r'"); }
  static bool NoJobIsLeft() {
    return Eventually([] { return Jobs().empty(); });
  }
  // Takes both nodes until the job is canceled.
  static std::string TakeAllNodes() {
    return OutputOf("salloc --quiet --no-shell -N2 --exclusive; squeue -h -o %i");
  }

  Workspace work;
  static std::unique_ptr<Cluster> cluster;
};
std::unique_ptr<Cluster> RealSlurmTest::cluster;

TEST_F(RealSlurmTest, ASearchRunsEachTrialAsAJobOnTwoNodes) {
  const Finished run = work.Succeed(
      OnSlurm({"random", "deepspeed.yaml", "--max-trials", "3", "--confirm", "0", "--soak", "0",
               "--out", "out", "--slurm-args", "--time=5 --comment='a tuning run'", "--json"}));
  EXPECT_THAT(run.err, HasSubstr("each attempt is a job of Slurm: 2 nodes with 1 slot"));
  const Json trials = Json::parse(run.out).at("trials");
  EXPECT_EQ(trials.size(), 3u);
  for (const Json& trial : trials)
    EXPECT_EQ(trial.at("state"), "succeeded") << trial;
  EXPECT_THAT(OutputOf("scontrol show job"),
              AllOf(HasSubstr("JobName=dsat-1-trial-2"), HasSubstr("NodeList=n[1-2]"),
                    HasSubstr("TimeLimit=00:05:00"), HasSubstr("Comment=a tuning run")));
  EXPECT_TRUE(NoJobIsLeft()) << Jobs();
}

// torchrun itself is started on two hosts by tests/searcher/scripts/real_deepspeed_test.cc.
TEST_F(RealSlurmTest, ALauncherRunsOnEachNode) {
  work.Write("torchrun", "#!/bin/sh\necho on $SLURMD_NODENAME: \"$@\"\n");
  fs::permissions(work.Path("torchrun"), fs::perms::owner_all);
  work.Write("ranks.yaml",
             "name: ranks\nentrypoint: ./torchrun --nnodes 2 t.py --ds_config {ds_config}\n"
             "resources: {slots_per_trial: 2, device_memory: 1GiB}\n"
             "hyperparameters: {deepspeed_config: ds_config.json}\n");
  work.Succeed(OnSlurm({"train", "ranks.yaml", "--out", "out"}));
  for (const std::string node : {"0", "1"}) {
    EXPECT_THAT(ReadFile(work.Path("out/host" + node + ".log")),
                AllOf(HasSubstr("on n" + std::to_string(std::stoi(node) + 1) + ": --nnodes 2 "),
                      HasSubstr(" --node_rank " + node + " --nproc_per_node 1 --master_addr ")));
  }
  EXPECT_TRUE(NoJobIsLeft()) << Jobs();
}

TEST_F(RealSlurmTest, InsideOfAJobTrialsAreItsSteps) {
  work.Write("in_job.sh", "exec dsat train deepspeed.yaml --launcher slurm --out out\n");
  const std::string job = OutputOf(
      fmt::format("cd {} && PATH={}:$PATH salloc --quiet -N2 --ntasks-per-node=1 sh in_job.sh 2>&1",
                  work.Path(""), BuildFolder()));
  EXPECT_THAT(job, AllOf(HasSubstr("of Slurm, hosts: n1 (1 slot), n2 (1 slot)"), HasSubstr("6/6"),
                         HasSubstr("done; the checkpoint is in")));
  EXPECT_TRUE(NoJobIsLeft()) << Jobs();
}

TEST_F(RealSlurmTest, AnInterruptSavesACheckpointAndLeavesNoJob) {
  const pid_t pid = StartTraining();
  ASSERT_TRUE(work.WaitUntilSaid("train.out", "step"));
  kill(pid, SIGINT);
  EXPECT_EQ(WaitFor(pid), 130);
  EXPECT_TRUE(fs::exists(work.Path("out/checkpoint/latest")));
  EXPECT_TRUE(NoJobIsLeft()) << Jobs();
}

TEST_F(RealSlurmTest, ARunnerTakesUpTheJobOfAKilledOne) {
  const pid_t killed = StartTraining();
  ASSERT_TRUE(work.WaitUntilSaid("train.out", "step"));
  const std::string job = OutputOf("squeue -h -o %i");
  kill(killed, SIGKILL);
  WaitFor(killed);
  fs::remove(work.Path("train.out"));
  const pid_t pid = StartTraining();
  ASSERT_TRUE(work.WaitUntilSaid("train.out", "step"));
  EXPECT_THAT(ReadFile(work.Path("train.err")),
              HasSubstr(fmt::format("runs in job {} of Slurm, which was kept for it", job)));
  EXPECT_EQ(Jobs(), job + " dsat-train RUNNING None");
  kill(pid, SIGINT);
  EXPECT_EQ(WaitFor(pid), 130);
  EXPECT_TRUE(NoJobIsLeft()) << Jobs();
}

TEST_F(RealSlurmTest, AJobThatSlurmEndsIsAFailureInSlurmsWords) {
  const pid_t pid = StartTraining();
  ASSERT_TRUE(work.WaitUntilSaid("train.out", "step"));
  OutputOf("scancel --name=dsat-train");
  EXPECT_EQ(WaitFor(pid), 1);
  EXPECT_THAT(
      ReadFile(work.Path("train.err")),
      testing::ContainsRegex("training failed: Slurm ended job [0-9]+: (CANCELLED|COMPLETING)"));
  EXPECT_TRUE(NoJobIsLeft()) << Jobs();
}

TEST_F(RealSlurmTest, ATrialThatWaitsInTheQueueIsNamedAndCanBeInterrupted) {
  const std::string other = TakeAllNodes();
  const pid_t pid =
      work.StartDsat(OnSlurm({"random", "deepspeed.yaml", "--start-timeout", "1"}), "search");
  ASSERT_TRUE(work.WaitUntilSaid("search.err", "trial 0 waits in Slurm's queue as job "));
  EXPECT_THAT(Jobs(), HasSubstr("dsat-1-trial-0 PENDING"));
  kill(pid, SIGINT);
  EXPECT_EQ(WaitFor(pid), 130);
  EXPECT_THAT(ReadFile(work.Path("search.err")),
              HasSubstr("--launcher slurm --slurm-slots-per-node 1"));
  EXPECT_THAT(Jobs(), Not(HasSubstr("dsat")));
  OutputOf("scancel " + other);
  EXPECT_TRUE(NoJobIsLeft()) << Jobs();
}

TEST_F(RealSlurmTest, AKilledSearchKeepsItsPlaceInTheQueue) {
  const std::string other = TakeAllNodes();
  const pid_t killed = work.StartDsat(
      OnSlurm({"random", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0", "--soak", "0"}),
      "search");
  ASSERT_TRUE(work.WaitUntilSaid("search.err", "trial 0 waits in Slurm's queue as job "))
      << ReadFile(work.Path("search.err"));
  const std::string jobs = Jobs();
  kill(killed, SIGKILL);
  WaitFor(killed);
  const pid_t pid = work.StartDsat(OnSlurm({"resume", "1"}), "resume");
  ASSERT_TRUE(work.WaitUntilSaid("resume.err", "trial 0 waits in Slurm's queue as job "));
  EXPECT_EQ(Jobs(), jobs);
  OutputOf("scancel " + other);
  EXPECT_EQ(WaitFor(pid), 0) << ReadFile(work.Path("resume.err"));
  EXPECT_TRUE(NoJobIsLeft()) << Jobs();
}

TEST_F(RealSlurmTest, AJobThatTheClusterCannotRunLeavesNoExperiment) {
  for (const auto& [args, words] : std::vector<std::pair<std::string, std::string>>{
           {"--partition=nowhere", "invalid partition specified: nowhere"},
           {"--cpus-per-task=3", "Requested node configuration is not available"},
           {"--time 11", "is above the limit of partition debug, 00:10:00"},
           {"--bogus", "unrecognized option '--bogus'"}}) {
    const Finished run = work.Dsat(OnSlurm({"random", "deepspeed.yaml", "--slurm-args", args}));
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.err, AllOf(HasSubstr(words), HasSubstr(args)));
  }
  EXPECT_FALSE(fs::exists(work.Path("dsat.db")));
}

TEST_F(RealSlurmTest, AClusterThatDoesNotAnswerLeavesNoExperiment) {
  std::string conf = ReadFile(std::getenv("SLURM_CONF"));
  conf.insert(conf.find("ClusterName"), "MessageTimeout=1\n");
  conf.replace(conf.find("SlurmctldPort="), conf.find("SlurmUser") - conf.find("SlurmctldPort="),
               fmt::format("SlurmctldPort={}\n", FreePort()));
  work.Write("slurm.conf", conf);
  const std::string before = std::getenv("SLURM_CONF");
  setenv("SLURM_CONF", work.Path("slurm.conf").c_str(), 1);
  const Finished run = work.Dsat(OnSlurm({"random", "deepspeed.yaml"}));
  setenv("SLURM_CONF", before.c_str(), 1);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("Unable to contact slurm controller"));
  EXPECT_FALSE(fs::exists(work.Path("dsat.db")));
}

}  // namespace
}  // namespace dsat
