// Tests who starts the ranks of a command, and what the command is told for that.
#include "searcher/command/rank_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "searcher/scripts/command_target.h"
#include "tests/base/error_code.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Pair;

class RankLauncherTest : public testing::Test {
 protected:
  RankLauncherTest() : path_(std::getenv("PATH")) {
    spec_.model_dir = folder_.path();
    spec_.slots_per_trial = 2;
    spec_.options.start_profile_step = 2;
    spec_.options.end_profile_step = 6;
    std::filesystem::create_directories(folder_ / "bin");
    std::filesystem::create_directories(folder_ / "attempt");
    setenv("PATH", (folder_ / "bin" + ":" + path_).c_str(), 1);
    Write("bin/llamafactory-cli", "#!/venv/bin/python3.11\nimport sys\n");
    Write("bin/tool", "#!/bin/sh\necho\n");
    Write("run.sh",
          "#!/bin/bash\nexport A=1\nif true; then torchrun --nproc_per_node 2 t.py; fi\n");
    Write("eight.sh", "torchrun --nproc_per_node=8 t.py\n");
    Write("outer.sh", "cd . && bash -x ./run.sh \"$@\" | tee log\n");
    Write("plain.sh", "python3 train.py\nbash plain.sh\n");
  }
  ~RankLauncherTest() override { setenv("PATH", path_.c_str(), 1); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  bool Starts(const std::string& command) {
    spec_.entrypoint = SplitCommand(command);
    return StartsRanks(spec_);
  }
  std::string RefusalOf(const std::string& command) {
    spec_.entrypoint = SplitCommand(command);
    return dsat::RefusalOf([this] { CheckRankLauncher(spec_); });
  }
  std::vector<RankCommand> CommandsOf(const std::string& command) {
    spec_.entrypoint = SplitCommand(command + " --ds_config {ds_config}");
    LaunchRequest request;
    request.ds_config = {{"train_micro_batch_size_per_gpu", 4}, {"gradient_accumulation_steps", 1}};
    request.dir = folder_ / "attempt";
    return MakeCommandTarget(spec_)->Prepare(request);
  }

  TempFolder folder_;
  std::string path_;
  ExperimentSpec spec_;
};

TEST_F(RankLauncherTest, ALauncherIsFoundInFilesOfAShellAndInProgramsOfPython) {
  for (const char* command :
       {"torchrun t.py", "bash run.sh", "./run.sh --lr 1", "sh -e outer.sh", "A=1 bash outer.sh",
        "RUN='deepspeed --num_gpus 2'; exec $RUN t.py", "llamafactory-cli train x.yaml",
        "cd . && llamafactory-cli train x.yaml"})
    EXPECT_TRUE(Starts(command)) << command;
  for (const char* command : {"python3 train.py", "python3 -m llamafactory-cli", "tool x",
                              "bash plain.sh", "bash none.sh", "./train x", "cat run.sh"})
    EXPECT_FALSE(Starts(command)) << command;
}

TEST_F(RankLauncherTest, OtherNumbersOfRanksAreRefusedWhereverTheyStand) {
  EXPECT_EQ(RefusalOf("bash run.sh"), "");
  EXPECT_THAT(RefusalOf("bash eight.sh"),
              HasSubstr("torchrun in eight.sh would start 8 ranks, expected 2"));
  spec_.environment = {{"RUN", "deepspeed --num_gpus 4"}};
  EXPECT_THAT(RefusalOf("$RUN t.py"), HasSubstr("deepspeed in $RUN would start 4 ranks"));
}

TEST_F(RankLauncherTest, ACommandThatStartsRanksRunsOnceAndIsToldHowMany) {
  for (const char* command : {"bash run.sh", "llamafactory-cli train x.yaml"}) {
    const std::vector<RankCommand> commands = CommandsOf(command);
    ASSERT_EQ(commands.size(), 1u) << command;
    const auto& env = commands[0].env;
    for (const std::string prefix : {"PET_", ""})
      EXPECT_THAT(env, AllOf(Contains(Pair(prefix + "NPROC_PER_NODE", "2")),
                             Contains(Pair(prefix + "NNODES", "1")),
                             Contains(Pair(prefix + "NODE_RANK", "0"))));
    EXPECT_THAT(env, Contains(Pair("LOCAL_SIZE", "2")));
    EXPECT_EQ(env.at("PET_MASTER_PORT"), env.at("MASTER_PORT"));
    EXPECT_EQ(env.count("RANK") + env.count("DSAT_RANK"), 0u);
    EXPECT_THAT(commands[0].log_path, HasSubstr("/host0.log"));
  }
  spec_.environment = {{"NPROC_PER_NODE", "7"}};
  EXPECT_EQ(CommandsOf("bash run.sh")[0].env.at("NPROC_PER_NODE"), "7");
}

TEST_F(RankLauncherTest, OneRankFindsNoVariablesOfALauncher) {
  spec_.slots_per_trial = 1;
  const std::vector<RankCommand> commands = CommandsOf("python3 train.py");
  ASSERT_EQ(commands.size(), 1u);
  for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "LOCAL_SIZE", "PET_NPROC_PER_NODE"})
    EXPECT_EQ(commands[0].env.count(name), 0u) << name;
  EXPECT_EQ(commands[0].env.at("DSAT_RANK"), "0");
  EXPECT_EQ(commands[0].env.at("DSAT_MASTER_PORT"), std::to_string(commands[0].buffers_port));
}

}  // namespace
}  // namespace dsat
