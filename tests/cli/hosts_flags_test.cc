// Runs the real binary with options for hosts, and with numbers in and out of range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct Refused {
  std::vector<std::string> args;
  std::string message;  // The beginning of the one line.
};

class HostsFlagsTest : public testing::Test {
 protected:
  void ExpectRefused(const Refused& refused, int exit_code) const {
    const Finished run = work_.Dsat(refused.args);
    EXPECT_EQ(run.exit_code, exit_code) << run.err;
    EXPECT_EQ(CountLines(run.err), 1) << run.err;
    EXPECT_THAT(run.err, StartsWith("dsat: " + refused.message));
    EXPECT_EQ(run.out, "");
  }

  Workspace work_;
};

TEST_F(HostsFlagsTest, HelpShowsThemWhereTrialsAreRun) {
  for (const char* command : {"asha", "binary", "random", "grid", "resume", "train"}) {
    const std::string help = work_.Dsat({command, "--help-all"}).out;
    for (const char* option :
         {"-H,--hostfile FILE", "--num_nodes,--num-nodes", "--num_gpus,--num-gpus",
          "--include-hosts", "--exclude-hosts", "--ssh COMMAND",
          "ssh -o BatchMode=yes -o ConnectTimeout=20", "--master_addr,--master-addr",
          "--launcher slurm", "--slurm-args OPTIONS", "--slurm-slots-per-node"})
      EXPECT_THAT(help, HasSubstr(option)) << command;
  }
  EXPECT_THAT(work_.Dsat({"train", "--help-all"}).out, HasSubstr("--include-hosts,--include "));
  EXPECT_THAT(work_.Dsat({"train", "--help-all"}).out, HasSubstr("--exclude-hosts,--exclude "));
  EXPECT_THAT(work_.Dsat({"show", "--help"}).out, Not(HasSubstr("--hostfile")));
}

TEST_F(HostsFlagsTest, CombinationsThatMeanNothingAreUsageErrors) {
  for (const Refused& refused : std::vector<Refused>{
           {{"asha", "x.yaml", "--include-hosts", "a"}, "--include-hosts requires --hostfile"},
           {{"resume", "1", "--num-nodes", "1"}, "--num_nodes requires --hostfile"},
           {{"train", "x.yaml", "--exclude", "a"}, "--exclude-hosts requires --hostfile"},
           {{"train", "x.yaml", "--ssh", "ssh"}, "--ssh requires --hostfile"},
           {{"train", "x.yaml", "--master_addr", "a"}, "--master_addr requires --hostfile"},
           {{"train", "x.yaml", "--hostfile", ""}, "--hostfile: it is empty"},
           {{"asha", "x.yaml", "-H", "hosts", "--slots", "2"}, "--slots excludes --hostfile"},
           {{"asha", "x.yaml", "--launcher", "slurm", "--slots", "2"},
            "--slots excludes --launcher"},
           {{"train", "x.yaml", "--launcher", "slurm", "-H", "hosts"},
            "--hostfile excludes --launcher"},
           {{"train", "x.yaml", "--launcher", "pbs"}, "--launcher: pbs"},
           {{"train", "x.yaml", "--slurm-args", "-p a"}, "--slurm-args requires --launcher"},
           {{"train", "x.yaml", "--launcher", "slurm", "--slurm-slots-per-node", "0"},
            "--slurm-slots-per-node: 0; expected a whole number of 1 or more"},
           {{"train", "x.yaml", "--launcher", "slurm", "--slurm-args", "-p $Q"},
            "--slurm-args \"-p $Q\": expected options without variables"},
           {{"train", "x.yaml", "-H", "hosts", "--include", "a", "--exclude", "b"},
            "--include-hosts excludes --exclude-hosts"},
           {{"resume", "1", "-H", "hosts", "--num_gpus", "1", "--include-hosts", "a"},
            "--num_gpus excludes --include-hosts"},
           {{"train", "x.yaml", "-H", "hosts", "--num_nodes", "0"},
            "--num_nodes: 0; expected a whole number of 1 or more"},
           {{"train", "x.yaml", "-H", "hosts", "--ssh", "ssh '"}, "--ssh ssh ': the quote"},
           {{"train", "x.yaml", "-H", "hosts", "--ssh", ""}, "--ssh: it is empty"},
           {{"train", "x.yaml", "-H", "hosts", "--ssh", "ssh | cat"},
            "--ssh \"ssh | cat\": expected a command without"},
       }) {
    ExpectRefused(refused, 2);
  }
}

TEST_F(HostsFlagsTest, AWrongHostfileLeavesNothingBehind) {
  work_.Write("bad", "a slots=1\nb slots = 2\n");
  work_.Write("good", "a slots=1\nb slots=2\n");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"asha", "x.yaml", "-i", "bad"}, {"resume", "1"}, {"train", "x.yaml"}}) {
    const auto with = [&command](const std::vector<std::string>& more) {
      return Joined(command, more);
    };
    ExpectRefused({with({"-H", "nowhere"}), "cannot read nowhere: No such file"}, 1);
    ExpectRefused({with({"--hostfile", "bad"}), "bad:2: \"b slots = 2\" is not a valid entry"}, 1);
    ExpectRefused({with({"-H", "good", "--include-hosts", "a:1"}),
                   "--include-hosts a:1: host a has no slot 1"},
                  1);
    ExpectRefused({with({"-H", "good", "--num_nodes", "3"}),
                   "--num_nodes 3: the hostfile has 2 hosts with slots"},
                  1);
  }
  EXPECT_FALSE(std::filesystem::exists(work_.Path("dsat.db")));
  EXPECT_FALSE(std::filesystem::exists(work_.Path("dsat-out")));
}

TEST_F(HostsFlagsTest, TheEnvironmentFileIsReadWithAHostfileOnly) {
  work_.Write("hosts", "a slots=1\n");
  work_.Write(".deepspeed_env", "A=1\nB\n");
  work_.Write("cluster_env", "C\n");
  const std::vector<std::string> with = {"train", "x.yaml", "-H", "hosts"};
  ExpectRefused({with, "./.deepspeed_env:2: \"B\" sets no variable"}, 1);
  ExpectRefused({{"train", "x.yaml"}, "cannot read x.yaml"}, 1);
  setenv("DS_ENV_FILE", "cluster_env", 1);
  ExpectRefused({with, "./cluster_env:1: \"C\" sets no variable"}, 1);
  unsetenv("DS_ENV_FILE");
}

TEST_F(HostsFlagsTest, ANumberThatDoesNotFitIsRefusedWithWhatIsExpected) {
  for (const Refused& refused : std::vector<Refused>{
           {{"asha", "x.yaml", "--max-trials", "0"},
            "--max-trials: 0; expected a whole number of 1 or more"},
           {{"asha", "x.yaml", "--slots", "-2"}, "--slots: -2; expected a whole number of 1 or"},
           {{"asha", "x.yaml", "--slots", "1.5"}, "--slots: 1.5; expected a whole number of 1 or"},
           {{"asha", "x.yaml", "--slots", "010"}, "--slots: 010; expected a whole number of 1 or"},
           {{"asha", "x.yaml", "--slots", "99999999999999999999"},
            "--slots: 99999999999999999999; expected a whole number"},
           {{"train", "x.yaml", "--hang-timeout", "9223372036854775807"},
            "--hang-timeout: 9223372036854775807; expected a whole number up to 1000000000"},
           {{"asha", "x.yaml", "--random-seed", "-1"},
            "--random-seed: -1; expected a whole number of 0 or more"},
           {{"train", "x.yaml", "--steps", "many"}, "--steps: many; expected a whole number of 1"},
           {{"train", "x.yaml", "--steps", ""}, "--steps: nothing; expected a whole number of 1"},
           {{"asha", "x.yaml", "--search-range-factor", "0"},
            "--search-range-factor: 0; expected a number above 0"},
           {{"generate", "x.yaml", "--prompt", "a", "--temperature", "-0.5"},
            "--temperature: -0.5; expected a number of 0 or more"},
       }) {
    ExpectRefused(refused, 2);
  }
  EXPECT_THAT(work_.Dsat({"asha", "--help"}).out,
              ContainsRegex("--max-trials N(.|\n)*\\(default: 50\\)"));
}

}  // namespace
}  // namespace dsat
