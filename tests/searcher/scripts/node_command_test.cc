// Tests the commands of launchers on several hosts.
#include "searcher/scripts/node_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/files.h"
#include "searcher/command/import_hook.h"
#include "searcher/launch/rank_places.h"
#include "searcher/scripts/command_target.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Argv = std::vector<std::string>;

// A trial of three ranks: one on the first host, and two on the second.
class NodeCommandTest : public testing::Test {
 protected:
  NodeCommandTest() {
    request_.dir = folder_.path();
    request_.hosts = {{.name = "a", .reach = {"ssh", "a"}, .slots = {0}, .address = "10.0.0.1"},
                      {.name = "b", .reach = {"ssh", "b"}, .slots = {3, 5}, .address = "10.0.0.2"}};
    request_.slots = {{0, 0}, {1, 3}, {1, 5}};
    port_ = MasterEnvironment(request_).at("MASTER_PORT");
  }

  Argv OnSecond(const Argv& argv) {
    const std::vector<Argv> argvs = ArgvOfHosts(argv, request_, folder_.path() + "/hostfile");
    EXPECT_EQ(argvs.size(), 2u);
    return argvs.at(1);
  }

  TempFolder folder_;
  LaunchRequest request_;
  std::string port_;
};

TEST_F(NodeCommandTest, TorchrunStartsTheRanksOfItsHost) {
  const std::vector<Argv> argvs =
      ArgvOfHosts({"torchrun", "-m", "train"}, request_, folder_.path() + "/hostfile");
  EXPECT_THAT(
      argvs,
      ElementsAre(Argv{"torchrun", "--nnodes", "2", "--node_rank", "0", "--nproc_per_node", "1",
                       "--master_addr", "10.0.0.1", "--master_port", port_, "-m", "train"},
                  Argv{"torchrun", "--nnodes", "2", "--node_rank", "1", "--nproc_per_node", "2",
                       "--master_addr", "10.0.0.1", "--master_port", port_, "-m", "train"}));
}

TEST_F(NodeCommandTest, WhatTheUserSaysOfHostsAndRendezvousIsReplaced) {
  EXPECT_EQ(OnSecond({"torchrun", "--nnodes=2", "--nproc-per-node", "2", "--standalone",
                      "--rdzv-endpoint=a:1", "--rdzv_conf", "timeout=9", "t.py", "--standalone"}),
            (Argv{"torchrun", "--nnodes", "2", "--node_rank", "1", "--nproc_per_node", "2",
                  "--master_addr", "10.0.0.1", "--master_port", port_, "--rdzv_conf", "timeout=9",
                  "t.py", "--standalone"}));
  EXPECT_EQ(OnSecond({"sh", "-c", "cd x && accelerate launch --num_processes $N t.py | cat"}),
            (Argv{"sh", "-c",
                  "cd x && accelerate launch --num_machines 2 --machine_rank 1 --num_processes 3 "
                  "--main_process_ip 10.0.0.1 --main_process_port " +
                      port_ + " --deepspeed_multinode_launcher standard t.py | cat"}));
}

TEST_F(NodeCommandTest, ATrialThatFitsOnOneHostGetsTheOptionsOfThatHost) {
  request_.slots = {{1, 3}, {1, 5}};
  request_.ds_config = {{"train_micro_batch_size_per_gpu", 1}, {"gradient_accumulation_steps", 1}};
  port_ = MasterEnvironment(request_).at("MASTER_PORT");
  ExperimentSpec spec;
  spec.slots_per_trial = 2;
  const auto argv_of = [&](const Argv& entrypoint) {
    spec.entrypoint = entrypoint;
    const std::vector<RankCommand> commands = MakeCommandTarget(spec)->Prepare(request_);
    EXPECT_EQ(commands.size(), 1u);
    EXPECT_EQ(commands[0].host, 1);
    EXPECT_EQ(std::to_string(commands[0].buffers_port), port_);
    return commands[0].argv;
  };
  EXPECT_EQ(argv_of({"torchrun", "--nnodes", "2", "--nproc_per_node", "1", "--rdzv_endpoint",
                     "h1:29500", "t.py", "--ds_config", "a"}),
            (Argv{"torchrun", "--nnodes", "1", "--node_rank", "0", "--nproc_per_node", "2",
                  "--master_addr", "127.0.0.1", "--master_port", port_, "t.py", "--ds_config",
                  folder_.path() + "/ds_config.json"}));
  EXPECT_EQ(argv_of({"deepspeed", "--hostfile", "hosts", "--module", "pkg.train", "-e", "3",
                     "--ds_config", "a"}),
            (Argv{"deepspeed", "--no_ssh", "--hostfile", folder_.path() + "/hostfile", "--include",
                  "node0:3,5", "--node_rank", "0", "--master_addr", "127.0.0.1", "--master_port",
                  port_, "--module", "pkg.train", "-e", "3", "--ds_config",
                  folder_.path() + "/ds_config.json"}));
}

TEST(PythonPathTest, WithoutTheHookAPathStaysAsItIs) {
  EXPECT_EQ(PythonPath("/d", "lib"), "/d/hook:/d:lib");
  EXPECT_EQ(PythonPath("/d", ""), "/d/hook:/d");
  EXPECT_EQ(PythonPath("", "lib"), "lib");
  EXPECT_EQ(PythonPath("", ""), "");
}

// It goes on without a step until it is killed.
TEST_F(NodeCommandTest, AScriptThatCatchesThatMemoryRanOutDoesNotFit) {
  ExperimentSpec spec;
  spec.entrypoint = {"python3", "t.py", "--ds_config", "a"};
  request_.ds_config = {{"train_micro_batch_size_per_gpu", 1}};
  const auto target = MakeCommandTarget(spec);
  const ExitReport killed{.exit_code = 128 + SIGKILL, .killed_by_us = true};
  WriteFileAtomic(folder_ / "rank0.log", "step 3\n");
  EXPECT_EQ(target->Classify(request_, killed).state, TrialState::kStopped);
  WriteFileAtomic(folder_ / "rank0.log", "skipped: CUDA out of memory. Tried to allocate 2 GiB\n");
  EXPECT_EQ(target->Classify(request_, killed).state, TrialState::kInfeasible);
}

TEST_F(NodeCommandTest, AScriptThatEndsBeforeItsFirstStepIsSaidToHave) {
  ExperimentSpec spec;
  spec.entrypoint = {"python3", "t.py", "--ds_config", "a"};
  request_.ds_config = {{"train_micro_batch_size_per_gpu", 1}};
  WriteJsonFile(folder_ / "hook-rank0.json", {{"world_size", 1}, {"config_applied", true}});
  WriteFileAtomic(folder_ / "rank0.log", "the batch is too large\n");
  EXPECT_THAT(
      MakeCommandTarget(spec)->Classify(request_, {}).reason,
      HasSubstr(
          "the script ended before its first optimizer step, as it does if its data have no whole "
          "batch of 1 per rank; the last error or line of its output is: the batch is too large"));
}

// It feeds 8 samples whatever its config says. Two views of each sample grow with the micro-batch.
TEST_F(NodeCommandTest, AScriptWhoseBatchesDoNotFollowItsConfigIsNotMeasured) {
  ExperimentSpec spec;
  spec.slots_per_trial = 1;
  spec.entrypoint = {"python3", "t.py", "--ds_config", "a"};
  spec.ds_config = {{"train_micro_batch_size_per_gpu", 2}};
  const auto launch = [&](LaunchTarget& target, TrialKind kind, int64_t micro_batch, int64_t fed) {
    request_.kind = kind;
    request_.ds_config = {{"train_micro_batch_size_per_gpu", micro_batch},
                          {"gradient_accumulation_steps", 1},
                          {"train_batch_size", micro_batch}};
    WriteJsonFile(
        folder_ / "hook-rank0.json",
        {{"forward_batch_sizes", {1, fed}},
         {"step_seconds", {0.1}},
         {"profile",
          {{"num_params", 9}, {"trainable_num_params", 9}, {"activation_bytes_per_sample", 9}}}});
    return target.Classify(request_, {});
  };
  const auto views = MakeCommandTarget(spec);
  EXPECT_EQ(launch(*views, TrialKind::kProfile, 1, 2).reason, "");
  EXPECT_EQ(launch(*views, TrialKind::kSubmitted, 2, 4).reason, "");
  EXPECT_EQ(launch(*views, TrialKind::kSearch, 4, 8).reason, "");
  const auto own = MakeCommandTarget(spec);
  EXPECT_EQ(launch(*own, TrialKind::kProfile, 1, 8).reason, "");
  const Outcome outcome = launch(*own, TrialKind::kSubmitted, 2, 8);
  EXPECT_EQ(outcome.state, TrialState::kFailed);
  EXPECT_THAT(outcome.reason,
              HasSubstr("feeds batches of 8 samples, with train_micro_batch_size_per_gpu 2 as with "
                        "1: build its data loader with dsat.get_ds_config(config)"));
  EXPECT_THAT(launch(*own, TrialKind::kSearch, 8, 8).reason, HasSubstr("8 as with 1"));
  // Half of the submitted size has as many views as that has samples.
  EXPECT_EQ(launch(*views, TrialKind::kSearch, 1, 2).reason, "");
  // A search that goes on does not know what its profiling trial fed.
  const auto resumed = MakeCommandTarget(spec);
  EXPECT_EQ(launch(*resumed, TrialKind::kSearch, 8, 8).reason, "");
  EXPECT_THAT(launch(*resumed, TrialKind::kConfirm, 1, 8).reason, HasSubstr("1 as with 8"));
  EXPECT_THAT(launch(*resumed, TrialKind::kSearch, 4, 8).reason, HasSubstr("4 as with 1"));
  // Too little data for one size is enough for another.
  const auto little = MakeCommandTarget(spec);
  EXPECT_THAT(launch(*little, TrialKind::kSearch, 16, 12).reason,
              HasSubstr("at most 12 samples, and the config says 16"));
  EXPECT_EQ(launch(*little, TrialKind::kSearch, 12, 12).reason, "");
}

TEST_F(NodeCommandTest, OtherRanksThanThoseOfATrialFailTheProfilingTrial) {
  ExperimentSpec spec;
  spec.slots_per_trial = 2;
  spec.entrypoint = {"torchrun", "t.py", "--ds_config", "a"};  // One rank, by torchrun's default.
  request_.kind = TrialKind::kProfile;
  request_.ds_config = {{"train_micro_batch_size_per_gpu", 1}};
  Json report = {
      {"world_size", 2},
      {"profile",
       {{"num_params", 9}, {"trainable_num_params", 9}, {"activation_bytes_per_sample", 9}}}};
  const auto target = MakeCommandTarget(spec);
  WriteJsonFile(folder_ / "hook-rank0.json", report);
  EXPECT_EQ(target->Classify(request_, {}).state, TrialState::kSucceeded);
  report["world_size"] = 1;
  WriteJsonFile(folder_ / "hook-rank0.json", report);
  EXPECT_FALSE(target->Poll(request_, /*have_exited=*/true).profile);
  const Outcome outcome = target->Classify(request_, {});
  EXPECT_EQ(outcome.state, TrialState::kFailed);
  EXPECT_THAT(outcome.reason, HasSubstr("world size 1; expected 2 as in resources.slots_per_trial: "
                                        "give --nproc_per_node 2 to torchrun"));
  // Its two ranks are the stages of a pipeline.
  report.update(
      {{"world_size", 2}, {"engine", "PipelineEngine"}, {"ran", {{"data_parallel_size", 1}}}});
  WriteJsonFile(folder_ / "hook-rank0.json", report);
  EXPECT_EQ(target->Classify(request_, {}).state, TrialState::kSucceeded);
  spec.ds_config = {{"train_micro_batch_size_per_gpu", 4}};
  spec.options.train_batch_size = 8;  // The submitted one is kept whatever the script makes of it.
  EXPECT_EQ(MakeCommandTarget(spec)->Classify(request_, {}).state, TrialState::kSucceeded);
  spec.options.train_batch_size = 16;
  EXPECT_THAT(MakeCommandTarget(spec)->Classify(request_, {}).reason,
              AllOf(HasSubstr("data-parallel size of the script is 1 on 2 ranks; expected 2"),
                    HasSubstr("\"stages\": 2}), or use --train-batch-size any")));
  report["engine"] = "DeepSpeedEngine";  // Its script has an mpu.
  WriteJsonFile(folder_ / "hook-rank0.json", report);
  EXPECT_THAT(MakeCommandTarget(spec)->Classify(request_, {}).reason,
              HasSubstr("train_batch_size 16 is divided: use --train-batch-size any"));
  spec.ds_config = {{"pipeline", {{"stages", 2}}}};
  EXPECT_EQ(MakeCommandTarget(spec)->Classify(request_, {}).state, TrialState::kSucceeded);
}

TEST_F(NodeCommandTest, DeepSpeedsLauncherGetsAHostfileAndNeedsNoSsh) {
  const std::string hostfile = folder_.path() + "/hostfile";
  ExperimentSpec spec;
  spec.slots_per_trial = 3;
  spec.options.start_profile_step = 2;
  spec.options.end_profile_step = 6;
  spec.entrypoint = {"deepspeed",
                     "-H",
                     "/job/hostfile",
                     "--force_multi",
                     "--no_local_rank",
                     "--launcher=slurm",
                     "t.py",
                     "--ds_config",
                     "a"};
  request_.ds_config = {{"train_micro_batch_size_per_gpu", 1},
                        {"gradient_accumulation_steps", 1},
                        {"train_batch_size", 3}};
  const std::vector<RankCommand> commands = MakeCommandTarget(spec)->Prepare(request_);
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[0].host, 0);
  EXPECT_EQ(commands[1].host, 1);
  EXPECT_EQ(commands[1].log_path, folder_.path() + "/host1.log");
  EXPECT_EQ(std::to_string(commands[1].buffers_port), port_);
  EXPECT_EQ(commands[1].env.at("CUDA_VISIBLE_DEVICES"), "3,5");
  EXPECT_EQ(commands[1].env.count("RANK"), 0u);
  EXPECT_EQ(commands[1].argv,
            (Argv{"deepspeed", "--no_ssh", "--hostfile", hostfile, "--include", "node0:0@node1:3,5",
                  "--node_rank", "1", "--master_addr", "10.0.0.1", "--master_port", port_,
                  "--no_local_rank", "t.py", "--ds_config", folder_.path() + "/ds_config.json"}));
  EXPECT_EQ(ReadFile(hostfile), "node0 slots=4096\nnode1 slots=4096\n");
}

}  // namespace
}  // namespace dsat
