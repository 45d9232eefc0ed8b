// Trials and trainings on several hosts, played by this machine
// (tests/searcher/hosts/fake_ssh.sh), by the real programs: ranks meet over TCP and report over
// TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kExperimentFile = std::string(R"(
entrypoint: builtin
resources: {slots_per_trial: 3, device_memory: 6MiB}
searcher: {name: single, max_length: 6})") +
                                    kSmallTraining;
constexpr char kDsConfig[] = R"({
  "train_micro_batch_size_per_gpu": 2,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 2}
})";

class SeveralHostsTest : public testing::Test {
 protected:
  void SetUp() override {
    work.Write("deepspeed.yaml", kExperimentFile);
    work.Write("ds_config.json", kDsConfig);
    work.Write("hosts", "w0 slots=2\nw1 slots=2\n");
  }
  static std::vector<std::string> OnHosts(std::vector<std::string> args) {
    const std::string ssh = std::string(DSAT_SOURCE_DIR) + "/tests/searcher/hosts/fake_ssh.sh";
    args.insert(args.end(), {"--hostfile", "hosts", "--ssh", ssh});
    return args;
  }
  // A command `ssh` that reaches a host as long as `condition` of the shell holds.
  void WriteSsh(const std::string& condition) {
    work.Write("ssh", "#!/bin/sh\ncd " + work.Path("") + "\nif " + condition + "; then exec " +
                          DSAT_SOURCE_DIR + "/tests/searcher/hosts/fake_ssh.sh \"$@\"; fi\n" +
                          "echo 'ssh: No route to host' >&2; exit 255\n");
    fs::permissions(work.Path("ssh"), fs::perms::owner_all);
  }

  Workspace work;
};

TEST_F(SeveralHostsTest, ATrainingEndsWithTheSameCheckpointAsOnOneHost) {
  work.Succeed({"train", "deepspeed.yaml", "--out", "here"});
  work.Succeed(OnHosts({"train", "deepspeed.yaml", "--out", "there"}));
  int num_files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(work.Path("here/checkpoint"))) {
    if (!entry.path().string().ends_with(".safetensors")) continue;
    const fs::path other =
        work.Path("there/checkpoint") / fs::relative(entry.path(), work.Path("here/checkpoint"));
    EXPECT_TRUE(ReadFile(entry.path()) == ReadFile(other)) << other;
    ++num_files;
  }
  EXPECT_EQ(num_files, 3);
}

TEST_F(SeveralHostsTest, ATraceHasTheRanksOfAllHostsAndLiesHere) {
  work.Succeed(OnHosts({"train", "deepspeed.yaml", "--out", "out", "--trace", "trace.json"}));
  std::set<int> ranks;
  const Json trace = ReadJsonFile(work.Path("trace.json"));
  for (const Json& event : trace.at("traceEvents"))
    ranks.insert(event.at("pid").get<int>());
  EXPECT_THAT(ranks, testing::ElementsAre(0, 1, 2));
  EXPECT_FALSE(fs::exists(work.Path("out/trace.json")));
}

TEST_F(SeveralHostsTest, ASearchRunsEveryTrialThere) {
  const Finished run =
      work.Succeed(OnHosts({"asha", "deepspeed.yaml", "--max-trials", "3", "--confirm", "1",
                            "--soak", "4", "--out", "out", "--json"}));
  const Json trials = Json::parse(run.out).at("trials");
  for (const Json& trial : trials)
    EXPECT_EQ(trial.at("state"), "succeeded") << trial;
  // The hosts share the output folder.
  EXPECT_EQ(trials.back().at("kind"), "soak");
  EXPECT_GT(trials.back().at("metrics").at("checkpoint_ms").at("value"), 0);
  const std::string id = trials.back().at("id").dump();
  EXPECT_FALSE(fs::exists(work.Path("out/trials/" + id + "/checkpoint")));
  EXPECT_TRUE(fs::exists(work.Path("out/ds_config.json")));
  EXPECT_TRUE(fs::exists(work.Path("out/trials/2/attempt0/rank2.log")));
  EXPECT_THAT(run.err, HasSubstr("hosts: w0 (2 slots), w1 (2 slots)"));
}

TEST_F(SeveralHostsTest, AnExperimentStaysOnItsMachines) {
  work.Succeed(OnHosts({"random", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0"}));
  EXPECT_THAT(work.Dsat({"resume", "1", "--max-trials", "3"}).err,
              HasSubstr("the trials of this experiment ran on other hosts (w0, w1); pass "
                        "--hostfile or --launcher"));
  work.Succeed({"random", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0"});
  EXPECT_THAT(work.Dsat(OnHosts({"resume", "2", "--max-trials", "3"})).err,
              HasSubstr("leave --hostfile and --launcher out"));
}

TEST_F(SeveralHostsTest, TheSpaceIsProfiledThere) {
  for (int run = 0; run < 2; ++run) {  // The folder belongs to no experiment.
    EXPECT_THAT(work.Succeed(OnHosts({"space", "deepspeed.yaml"})).out,
                HasSubstr("best configurations as predicted"));
    EXPECT_TRUE(fs::exists(work.Path("dsat-out/space/trials/0/attempt0/rank2.log")));
  }
}

TEST_F(SeveralHostsTest, TrialsThatFitOnAHostRunSideBySide) {
  std::string file = kExperimentFile;
  file.replace(file.find("slots_per_trial: 3"), 18, "slots_per_trial: 1");
  work.Write("deepspeed.yaml", file);
  EXPECT_EQ(work.DsatJson(OnHosts({"random", "deepspeed.yaml", "--max-trials", "5", "--confirm",
                                   "0", "--out", "out", "--json"}))
                .at("trials")
                .size(),
            5u);
  const std::string overlaps =
      work.Dsat({"query",
                 "SELECT COUNT(*) FROM attempts a JOIN attempts b ON a.trial < b.trial "
                 "WHERE a.started_at < b.ended_at AND b.started_at < a.ended_at"})
          .out;
  EXPECT_THAT(overlaps, testing::ContainsRegex("[1-9]"));
}

TEST_F(SeveralHostsTest, ALostHostGetsNoTrialsAndCostsNone) {
  std::string file = kExperimentFile;
  file.replace(file.find("slots_per_trial: 3"), 18, "slots_per_trial: 1");
  work.Write("deepspeed.yaml", file);
  work.Write("hosts", "w0 slots=1\nw1 slots=1\n");
  // w1 answers the first question and runs one trial.
  WriteSsh(R"sh([ $1 = w0 ] || { echo call >> calls; [ $(wc -l < calls) -le 2 ]; })sh");
  const Finished run =
      work.Succeed({"random", "deepspeed.yaml", "--max-trials", "8", "--confirm", "0", "--hostfile",
                    "hosts", "--ssh", work.Path("ssh"), "--out", "out", "--json"});
  EXPECT_THAT(run.err, AllOf(HasSubstr("host w1 does not start trials and gets none for 10 s"),
                             HasSubstr("is tried again: "), HasSubstr("No route to host")));
  const Json trials = Json::parse(run.out).at("trials");
  EXPECT_EQ(trials.size(), 8u);
  for (const Json& trial : trials)
    EXPECT_NE(trial.at("state"), "failed") << trial;
}

TEST_F(SeveralHostsTest, AnInterruptEndsTheWaitForALostHost) {
  work.Write("hosts", "w0 slots=3\n");
  WriteSsh("[ ! -e called ] && touch called");
  const pid_t pid = work.StartDsat({"random", "deepspeed.yaml", "--max-trials", "3", "--hostfile",
                                    "hosts", "--ssh", work.Path("ssh"), "--out", "out"},
                                   "search");
  ASSERT_TRUE(
      work.WaitUntilSaid("search.err", "host w0 does not start trials and gets none for 10 s"));
  kill(pid, SIGINT);  // While it waits for the host.
  EXPECT_EQ(WaitFor(pid), 130);
  EXPECT_THAT(ReadFile(work.Path("search.err")), HasSubstr("dsat resume 1"));
}

TEST_F(SeveralHostsTest, ARankThatIsKilledEndsTheTrainingOnAllHosts) {
  work.Write("deepspeed.yaml", kExperimentFile + "max_restarts: 0\n");
  const pid_t pid = work.StartDsat(
      OnHosts({"train", "deepspeed.yaml", "--out", "out", "--steps", "1000000"}), "train");
  ASSERT_TRUE(work.WaitUntilSaid("train.out", "step"));
  const std::string task = work.Path("out/task.json");
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    std::ostringstream command, environment;
    command << std::ifstream(entry.path() / "cmdline").rdbuf();
    environment << std::ifstream(entry.path() / "environ").rdbuf();
    const bool is_last = environment.str().find(std::string("\0RANK=2\0", 8)) != std::string::npos;
    if (is_last && command.str().find(task) != std::string::npos)
      kill(std::stoi(entry.path().filename()), SIGKILL);
  }
  EXPECT_EQ(WaitFor(pid), 1);
  EXPECT_THAT(ReadFile(work.Path("train.err")), HasSubstr("training failed: rank 2 was killed"));
  EXPECT_THAT(ProcessesWith(work.Path("")), IsEmpty());
}

TEST_F(SeveralHostsTest, AnInterruptSavesACheckpointAndLeavesNothing) {
  const pid_t pid = work.StartDsat(
      OnHosts({"train", "deepspeed.yaml", "--out", "out", "--steps", "1000000"}), "train");
  ASSERT_TRUE(work.WaitUntilSaid("train.out", "step"));
  kill(pid, SIGINT);
  EXPECT_EQ(WaitFor(pid), 130);
  EXPECT_TRUE(fs::exists(work.Path("out/checkpoint/latest")));
  EXPECT_THAT(ProcessesWith(work.Path("")), IsEmpty());
}

TEST_F(SeveralHostsTest, AHostThatCannotBeReachedLeavesNoExperiment) {
  work.Write("hosts", "w0 slots=2\ngone slots=2\n");
  const Finished run = work.Fail(OnHosts({"asha", "deepspeed.yaml"}),
                                 "host gone: ssh: Could not resolve hostname gone");
  EXPECT_THAT(run.err, HasSubstr("reaches without a password"));
  EXPECT_FALSE(fs::exists(work.Path("dsat.db")));
}

TEST_F(SeveralHostsTest, WhetherAHostHasGpusIsForItsRanksToSay) {
  std::string file = kExperimentFile;
  file.replace(file.find("device_memory: 6MiB"), 19, "device: cuda");
  work.Write("deepspeed.yaml", file);
  const Finished run = work.Dsat(OnHosts({"asha", "deepspeed.yaml", "--max-trials", "2"}));
  EXPECT_THAT(run.err, HasSubstr("trial   0"));
  if (run.exit_code != 0) {
    EXPECT_THAT(run.err, HasSubstr("device is \"cuda\": "));
  }
}

TEST_F(SeveralHostsTest, TooFewSlotsAreRefusedByNameAndLeaveNoExperiment) {
  work.Write("hosts", "w0 slots=1\nw1 slots=1\n");
  for (const char* command : {"train", "asha"}) {
    const Finished run = work.Fail(OnHosts({command, "deepspeed.yaml"}),
                                   "resources.slots_per_trial: 3; the hosts have fewer slots");
    EXPECT_THAT(run.err, testing::Not(HasSubstr("training")));
  }
  EXPECT_FALSE(fs::exists(work.Path("dsat-out")));
  EXPECT_FALSE(fs::exists(work.Path("dsat.db")));
}

TEST_F(SeveralHostsTest, AnUnknownMasterAddressIsRefused) {
  work.Write("hosts", "localhost slots=2\nw1 slots=2\n");
  work.Fail(OnHosts({"train", "deepspeed.yaml", "--master_addr", "no.invalid"}),
            "--master_addr no.invalid: this machine finds no address for it");
}

TEST_F(SeveralHostsTest, ATrialInSlurmsQueueIsGivenBackWhenTheTimeIsOver) {
  const std::string fake = std::string(DSAT_SOURCE_DIR) + "/tests/searcher/hosts/fake_slurm.sh";
  for (const char* name : {"salloc", "srun", "scontrol", "squeue"})
    fs::create_symlink(fake, work.Path(name));
  const std::string path = std::getenv("PATH");
  setenv("PATH", (work.Path("") + ":" + path).c_str(), 1);
  setenv("FAKE_SLURM", work.Path("").c_str(), 1);
  const Finished run = work.Dsat(
      {"random", "deepspeed.yaml", "--launcher", "slurm", "--max-time", "1s", "--max-trials", "3"});
  setenv("PATH", path.c_str(), 1);
  unsetenv("FAKE_SLURM");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("it waited in Slurm's queue when the search ended: --max-time"));
  EXPECT_TRUE(fs::exists(work.Path("returned")));  // The job.
  EXPECT_THAT(ProcessesWith(work.Path("")), IsEmpty());
}

}  // namespace
}  // namespace dsat
