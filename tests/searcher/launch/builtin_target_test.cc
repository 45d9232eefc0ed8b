// Tests the tasks of the built-in engine's ranks, and the meaning of their exit codes.
#include "searcher/launch/launch_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "base/files.h"
#include "engine/runtime/rank_variables.h"
#include "proto/trial_task.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::Pair;

class BuiltinTargetTest : public testing::Test {
 protected:
  BuiltinTargetTest() {
    request_.experiment = 3;
    request_.trial = 9;
    request_.attempt = 1;
    request_.give_up_below = 12.5;
    request_.ds_config = {{"train_batch_size", 8}};
    request_.dir = folder_.path();
    request_.report_address = "unix:/tmp/x";
    request_.report_key = "secret";
    request_.token = "shared";
    spec_.slots_per_trial = 2;
    spec_.model_dir = "/models/here";
    spec_.device = "auto";
    spec_.device_memory_bytes = 1 << 20;
    spec_.hyperparameters = {{"model", {{"name", "gpt2"}}}, {"data", {{"path", "x.bin"}}}};
    spec_.options.start_profile_step = 2;
    spec_.options.end_profile_step = 4;
    spec_.options.random_seed = 77;
    spec_.max_length_steps = 1234;
  }

  std::vector<RankCommand> Commands() {
    return MakeBuiltinTarget(spec_, "/bin/dsat-trial")->Prepare(request_);
  }
  TrialTask Task() { return TrialTaskFromJson(ReadJsonFile(Commands().at(0).argv.at(1))); }
  Outcome OutcomeOf(const ExitReport& exit) {
    return MakeBuiltinTarget(spec_, "/bin/dsat-trial")->Classify(request_, exit);
  }

  const TempFolder folder_;
  LaunchRequest request_;
  ExperimentSpec spec_;
};

TEST_F(BuiltinTargetTest, StartsOneTrialProcessPerSlot) {
  const std::vector<RankCommand> commands = Commands();
  ASSERT_EQ(commands.size(), 2u);
  for (size_t rank = 0; rank < 2; ++rank) {
    const RankCommand& command = commands[rank];
    EXPECT_THAT(command.argv, ElementsAre("/bin/dsat-trial", EndsWith("/task.json")));
    EXPECT_TRUE(std::filesystem::path(command.argv[1]).is_absolute());
    const std::string text = std::to_string(rank);
    EXPECT_THAT(command.env, Contains(Pair("RANK", text)));
    EXPECT_THAT(command.env, Contains(Pair("LOCAL_RANK", text)));
    EXPECT_THAT(command.env, Contains(Pair("WORLD_SIZE", "2")));
    EXPECT_THAT(command.env, Contains(Pair("LOCAL_WORLD_SIZE", "2")));
    EXPECT_THAT(command.env, Contains(Pair(engine::kEnvReportKey, "secret")));
    EXPECT_FALSE(command.env.contains(engine::kEnvToken));  // All are on this machine.
    EXPECT_THAT(command.env, Contains(Pair("OMP_WAIT_POLICY", "PASSIVE")));
    EXPECT_EQ(command.env.at(engine::kEnvNumThreads), command.env.at("OMP_NUM_THREADS"));
    EXPECT_EQ(command.log_path, request_.dir + "/rank" + text + ".log");
  }
}

TEST_F(BuiltinTargetTest, RanksShareTheCoresButHaveOneThreadAtLeast) {
  spec_.slots_per_trial = 1;
  const int all = std::stoi(Commands()[0].env.at(engine::kEnvNumThreads));
  EXPECT_GE(all, 1);
  spec_.slots_per_trial = 4096;
  EXPECT_EQ(Commands()[0].env.at(engine::kEnvNumThreads), "1");
}

TEST_F(BuiltinTargetTest, TheExperimentsEnvironmentIsOnTop) {
  spec_.environment = {{"OMP_NUM_THREADS", "7"}, {"OWN", "x"}};
  for (const RankCommand& command : Commands()) {
    EXPECT_EQ(command.env.at("OMP_NUM_THREADS"), "7");
    EXPECT_EQ(command.env.at("OWN"), "x");
  }
}

TEST_F(BuiltinTargetTest, RanksOnSeveralHostsAreToldWhereTheyAreAndWhereTheyMeet) {
  spec_.slots_per_trial = 3;
  request_.hosts = {{.name = "a",
                     .reach = {"ssh", "a"},
                     .slots = {0, 1},
                     .address = "10.0.0.1",
                     .num_cores = 8,
                     .environment = {{"NCCL_DEBUG", "INFO"}, {"WORLD_SIZE", "never"}}},
                    {.name = "b", .reach = {"ssh", "b"}, .slots = {5}, .num_cores = 6}};
  request_.slots = {{0, 0}, {0, 1}, {1, 5}};
  const std::vector<RankCommand> commands = Commands();
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_EQ(commands[1].host, 0);
  EXPECT_EQ(commands[2].host, 1);
  EXPECT_THAT(commands[1].env, Contains(Pair("LOCAL_RANK", "1")));
  EXPECT_THAT(commands[1].env, Contains(Pair("LOCAL_WORLD_SIZE", "2")));
  EXPECT_THAT(commands[1].env, Contains(Pair("NCCL_DEBUG", "INFO")));
  EXPECT_THAT(commands[1].env, Contains(Pair("WORLD_SIZE", "3"))) << "ours is on top";
  EXPECT_THAT(commands[1].env, Contains(Pair("OMP_NUM_THREADS", "4"))) << "of that host's cores";
  EXPECT_THAT(commands[2].env, Contains(Pair("RANK", "2")));
  EXPECT_THAT(commands[2].env, Contains(Pair("LOCAL_RANK", "0")));
  EXPECT_THAT(commands[2].env, Contains(Pair("LOCAL_WORLD_SIZE", "1")));
  EXPECT_THAT(commands[2].env, Contains(Pair("OMP_NUM_THREADS", "6")));
  EXPECT_THAT(commands[2].env, Contains(Pair("CUDA_VISIBLE_DEVICES", "5")));
  for (const RankCommand& command : commands) {
    EXPECT_THAT(command.env, Contains(Pair("MASTER_ADDR", "10.0.0.1")));
    EXPECT_EQ(command.env.at("MASTER_PORT"), commands[0].env.at("MASTER_PORT"));
    EXPECT_THAT(command.files, ElementsAre(request_.dir + "/task.json"));
    EXPECT_FALSE(command.shares_folder) << "a trial leaves nothing but its log";
  }
  request_.full_run = true;
  EXPECT_TRUE(Commands()[0].shares_folder) << "checkpoints";
}

TEST_F(BuiltinTargetTest, OnTheProcessorDevicesAreNotChosen) {
  spec_.device = "cpu";
  request_.hosts = {{.name = "a", .reach = {"ssh", "a"}, .slots = {0, 1}, .num_cores = 8}};
  request_.slots = {{0, 0}, {0, 1}};
  for (const RankCommand& command : Commands()) {
    EXPECT_EQ(command.env.count("CUDA_VISIBLE_DEVICES"), 0u);
    EXPECT_EQ(command.env.count("MASTER_ADDR"), 0u) << "one host: the ranks share memory";
  }
}

TEST_F(BuiltinTargetTest, TheTaskSaysWhatToRun) {
  const TrialTask task = Task();
  EXPECT_EQ(task.mode, TrialTask::Mode::kMeasure);
  EXPECT_EQ(task.experiment, 3);
  EXPECT_EQ(task.trial, 9);
  EXPECT_EQ(task.attempt, 1);
  EXPECT_EQ(task.ds_config, request_.ds_config);
  EXPECT_EQ(task.model, Json({{"name", "gpt2"}}));
  EXPECT_EQ(task.data, Json({{"path", "x.bin"}}));
  EXPECT_EQ(task.base_dir, "/models/here");
  EXPECT_EQ(task.device, "auto");
  EXPECT_EQ(task.device_memory_bytes, 1 << 20);
  EXPECT_EQ(task.start_profile_step, 2);
  EXPECT_EQ(task.end_profile_step, 4);
  EXPECT_FALSE(task.fixed_window);
  EXPECT_EQ(task.give_up_below, 12.5);
  EXPECT_EQ(task.seed, 77);
  EXPECT_EQ(task.report_address, "unix:/tmp/x");
  EXPECT_EQ(task.checkpoint_dir, "");
}

TEST_F(BuiltinTargetTest, ThePublishedMethodsMeasureExactlyTheirWindow) {
  spec_.options.compat_determined = true;
  EXPECT_TRUE(Task().fixed_window);
}

TEST_F(BuiltinTargetTest, TheModeFollowsTheTrial) {
  request_.kind = TrialKind::kProfile;
  EXPECT_EQ(Task().mode, TrialTask::Mode::kProfile);
  request_.kind = TrialKind::kSubmitted;
  EXPECT_EQ(Task().mode, TrialTask::Mode::kMeasure);
  request_.full_run = true;
  const TrialTask task = Task();
  EXPECT_EQ(task.mode, TrialTask::Mode::kTrain);
  EXPECT_EQ(task.train_steps, 1234);
  EXPECT_EQ(task.checkpoint_dir, request_.dir + "/checkpoint");
}

TEST_F(BuiltinTargetTest, AnEmptyExperimentHasAnEmptyModel) {
  spec_.hyperparameters = Json::object();
  EXPECT_EQ(Task().model, Json::object());
  EXPECT_EQ(Task().data, Json::object());
}

TEST_F(BuiltinTargetTest, ExitCodesBecomeOutcomes) {
  const auto expect = [&](const ExitReport& exit, TrialState state, const std::string& reason) {
    const Outcome outcome = OutcomeOf(exit);
    EXPECT_EQ(ToString(outcome.state), ToString(state)) << reason;
    EXPECT_EQ(outcome.reason, reason);
  };
  expect({}, TrialState::kFailed, "ended without a measurement");
  expect({.killed_by_us = true}, TrialState::kStopped, "");
  expect({.first_failed_rank = 1, .exit_code = kExitInfeasible, .log_tail = "a\nout of memory\n"},
         TrialState::kInfeasible, "out of memory");
  expect({.first_failed_rank = 1, .exit_code = kExitInfeasible}, TrialState::kInfeasible,
         "the configuration cannot run here");
  expect({.first_failed_rank = 2, .exit_code = 1, .log_tail = "x\nno such file\n\n"},
         TrialState::kFailed, "rank 2 exited with code 1: no such file");
  const ExitReport killed = {.first_failed_rank = 0, .exit_code = 128 + SIGKILL};
  expect(killed, TrialState::kFailed, "rank 0 was killed by signal 9 (Killed)");
  ExitReport oom = killed;
  oom.oom_kills = 1;
  expect(oom, TrialState::kFailed, "out of host memory: the kernel killed rank 0");
  // The end of an unrelated process does not count.
  oom.exit_code = 128 + SIGSEGV;
  expect(oom, TrialState::kFailed, "rank 0 was killed by signal 11 (Segmentation fault)");
}

TEST_F(BuiltinTargetTest, AFullRunSucceedsByItsExit) {
  request_.full_run = true;
  EXPECT_EQ(OutcomeOf({}).state, TrialState::kSucceeded);
  EXPECT_EQ(OutcomeOf({.first_failed_rank = 0, .exit_code = 1}).state, TrialState::kFailed);
  EXPECT_EQ(OutcomeOf({.killed_by_us = true}).state, TrialState::kStopped);
}

}  // namespace
}  // namespace dsat
