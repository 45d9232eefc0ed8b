// Tests the user's own command: its arguments, its config, and whole trials under the real
// supervisor, with a script that reports as under dsat's import hook (fake_deepspeed.py).
#include "searcher/scripts/command_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <fstream>

#include "base/files.h"
#include "searcher/processes/leftovers.h"
#include "tests/base/error_code.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using Argv = std::vector<std::string>;

Json TrialConfig(int64_t micro_batch, int64_t accumulation) {
  return {{"train_micro_batch_size_per_gpu", micro_batch},
          {"gradient_accumulation_steps", accumulation},
          {"train_batch_size", 2 * micro_batch * accumulation},
          {"zero_optimization", {{"stage", 0}, {"reduce_bucket_size", 1000}}},
          {"steps_per_print", 100},
          {"wall_clock_breakdown", true},
          {"wandb", {{"enabled", true}, {"project", "p"}}}};
}

class CommandTargetTest : public testing::Test {
 protected:
  CommandTargetTest() {
    std::filesystem::create_directories(folder_ / "trials/7/0");
    spec_.model_dir = folder_.path();
    spec_.slots_per_trial = 2;
    spec_.device_memory_bytes = 0;
    spec_.options.start_profile_step = 2;
    spec_.options.end_profile_step = 6;
    request_.trial = 7;
    request_.kind = TrialKind::kSearch;
    request_.ds_config = TrialConfig(4, 3);
    request_.dir = folder_ / "trials/7/0";
    request_.shared_dir = folder_.path();
    Behave("well");
    setenv("DSAT_PYTHON_DIR", (folder_ / "none").c_str(), 1);  // Only some tests have the hook.
  }
  ~CommandTargetTest() override { unsetenv("DSAT_PYTHON_DIR"); }

  // From now on, there is a folder with an import hook, which does nothing.
  std::string MakeHook() {
    std::filesystem::create_directories(folder_ / "python/hook");
    std::ofstream(folder_ / "python/hook/sitecustomize.py") << "";
    setenv("DSAT_PYTHON_DIR", (folder_ / "python").c_str(), 1);
    return folder_ / "python";
  }

  void Behave(const std::string& how) {
    spec_.entrypoint = {"python3",
                        DSAT_SOURCE_DIR "/tests/searcher/scripts/fake_deepspeed.py",
                        "--behave",
                        how,
                        "--deepspeed_config",
                        "ds.json",
                        folder_.path()};
  }

  struct Result {
    Outcome outcome;
    ExitReport exit;
    std::vector<PointResult> points;
    std::vector<ModelProfile> profiles;
    int64_t progress = 0;
  };
  // As a runner does it: stops the ranks once there is a result or `stop` has passed.
  Result Run(std::chrono::milliseconds stop = std::chrono::seconds(15));

  std::vector<RankCommand> Commands() { return MakeCommandTarget(spec_)->Prepare(request_); }
  std::string RefusalOf(const Argv& entrypoint) {
    spec_.entrypoint = entrypoint;
    return dsat::RefusalOf([this] { MakeCommandTarget(spec_); });
  }
  Json WrittenConfig() { return ReadJsonFile(request_.dir + "/ds_config.json"); }

  TempFolder folder_;
  ExperimentSpec spec_;
  LaunchRequest request_;
};

CommandTargetTest::Result CommandTargetTest::Run(std::chrono::milliseconds stop) {
  const auto target = MakeCommandTarget(spec_);
  SupervisedProcess process =
      SupervisedProcess::Start(SelfBinary(), target->Prepare(request_), request_.dir, kShortGrace);
  const auto deadline = std::chrono::steady_clock::now() + stop;
  Result result;
  for (std::optional<ExitReport> exit; !exit;) {
    pollfd fd = {process.fd(), POLLIN, 0};
    poll(&fd, 1, 20);
    exit = process.Poll();
    const AttemptNews news = target->Poll(request_, exit.has_value());
    if (news.measured) result.points.push_back(*news.measured);
    if (news.profile) result.profiles.push_back(*news.profile);
    result.progress = news.progress;
    const bool late = std::chrono::steady_clock::now() > deadline;
    if (!exit && (late || !result.points.empty())) process.Stop(std::chrono::milliseconds(200));
    if (exit) result.exit = *exit;
  }
  result.outcome = target->Classify(request_, result.exit);
  EXPECT_TRUE(ProcessesNaming(folder_.path()).empty());
  return result;
}

TEST_F(CommandTargetTest, MeasuresAScriptThatReports) {
  const Result result = Run();
  EXPECT_EQ(result.outcome.state, TrialState::kSucceeded) << result.outcome.reason;
  EXPECT_EQ(result.outcome.reason, "");
  ASSERT_EQ(result.points.size(), 1u);  // Given once.
  EXPECT_EQ(result.points[0].point.micro_batch_size, 4);
  EXPECT_EQ(result.points[0].point.accumulation_steps, 3);
  EXPECT_EQ(result.progress, 7);
  const Measurement& measured = result.points[0].measurement;
  // Steps 3 to 6, after the profiled step 2.
  EXPECT_EQ(measured.at("latency").samples, 4);
  EXPECT_DOUBLE_EQ(measured.at("latency").value, 18.0);
  EXPECT_DOUBLE_EQ(measured.at("throughput").value, 24 / 0.018);
  EXPECT_DOUBLE_EQ(measured.at("forward").value, 1.5);
  EXPECT_DOUBLE_EQ(measured.at("backward").value, 2.25);
  EXPECT_DOUBLE_EQ(measured.at("step").value, 8.5);
  EXPECT_DOUBLE_EQ(measured.at("step").spread, 0.75);
  EXPECT_NEAR(measured.at("FLOPS_per_gpu").value, 1e9, 1.0);
}

TEST_F(CommandTargetTest, WhatTheHookReportsOfAllRanksIsMeasured) {
  Behave("hook");
  const Result result = Run();
  EXPECT_EQ(result.outcome.state, TrialState::kSucceeded) << result.outcome.reason;
  ASSERT_EQ(result.points.size(), 1u);
  const Measurement& measured = result.points[0].measurement;
  EXPECT_DOUBLE_EQ(measured.at("peak_bytes").value, 5.0 * (1 << 30));  // The peak is rank 1's.
  EXPECT_DOUBLE_EQ(measured.at("alloc_retries").value, 1);
  EXPECT_DOUBLE_EQ(measured.at("data_wait").value, 0.25);
  EXPECT_DOUBLE_EQ(measured.at("host_bytes").value, 2.0 * (1 << 30));
  EXPECT_THAT(result.points[0].losses, ElementsAre(2.75, 2.25));  // The means of both ranks.
  EXPECT_THAT(result.points[0].rank_peak_bytes, ElementsAre(int64_t{1} << 30, int64_t{5} << 30));
  EXPECT_NEAR(measured.at("throughput").value * measured.at("latency").value, 24e3, 1e3);
}

TEST_F(CommandTargetTest, LossesAreReadFromTheOutputIfAPatternIsGiven) {
  Behave("log-losses");
  EXPECT_THAT(Run().points.at(0).losses, IsEmpty());
  spec_.options.loss_pattern = "'loss': ([0-9.]+|nan)";
  EXPECT_THAT(Run().points.at(0).losses, ElementsAre(3, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4));
}

TEST_F(CommandTargetTest, ASoakRunsItsSteps) {
  request_.kind = TrialKind::kSoak;
  request_.steps = 12;
  const Result result = Run();
  EXPECT_EQ(result.outcome.state, TrialState::kSucceeded) << result.outcome.reason;
  EXPECT_EQ(result.progress, 12);
  EXPECT_EQ(result.points.at(0).measurement.at("latency").samples, 9);
}

TEST_F(CommandTargetTest, TheEngineSaysHowManyRanksShareTheData) {
  Behave("pipeline");  // Its two ranks are two stages.
  const Result result = Run();
  EXPECT_EQ(result.outcome.state, TrialState::kSucceeded) << result.outcome.reason;
  ASSERT_EQ(result.points.size(), 1u);
  const Measurement& measured = result.points[0].measurement;
  EXPECT_NEAR(measured.at("throughput").value * measured.at("latency").value, 12e3, 1e3);
}

TEST_F(CommandTargetTest, OnlyTheBuffersOfOurOwnRanksAreRemoved) {
  Behave("shared-buffers");  // It also writes those of a program with MASTER_PORT 1.
  Run();
  int left = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.find("_127.0.0.1_") == name.npos || ReadOrEmpty(entry.path()) != "buffer") continue;
    EXPECT_THAT(name, HasSubstr("_127.0.0.1_1_"));
    ++left;
  }
  EXPECT_EQ(left, 2);
  EXPECT_EQ(RemoveSharedBuffers(1), 12);
  EXPECT_THAT(SharedMemoryShortage(1 << 30), HasSubstr("/dev/shm has"));
  EXPECT_EQ(SharedMemoryShortage(0), "");
}

TEST_F(CommandTargetTest, AFileThatIsBeingWrittenIsWaitedFor) {
  Behave("slow-file");
  const Result result = Run();
  EXPECT_EQ(result.outcome.state, TrialState::kSucceeded) << result.outcome.reason;
  EXPECT_EQ(result.points.size(), 1u);
}

TEST_F(CommandTargetTest, AMeasuredTrialSucceedsHoweverItEnds) {
  Behave("swallows-exit");
  const Result stopped = Run();
  EXPECT_TRUE(stopped.exit.killed_by_us);
  EXPECT_EQ(stopped.outcome.state, TrialState::kSucceeded);
  Behave("bad-code");
  const Result failed = Run();
  EXPECT_EQ(failed.outcome.state, TrialState::kSucceeded);
}

TEST_F(CommandTargetTest, TheProfilingTrialCountsParametersAndActivations) {
  request_.kind = TrialKind::kProfile;
  spec_.device_memory_bytes = 123456789;
  const Result result = Run();
  EXPECT_EQ(result.outcome.state, TrialState::kSucceeded) << result.outcome.reason;
  EXPECT_TRUE(result.points.empty());
  ASSERT_EQ(result.profiles.size(), 1u);
  EXPECT_EQ(result.profiles[0].num_params, 1000);
  EXPECT_EQ(result.profiles[0].trainable_num_params, 900);
  EXPECT_EQ(result.profiles[0].activation_bytes_per_sample, 2 << 20);  // 8 MiB for 4 samples.
  EXPECT_EQ(result.profiles[0].device_memory_bytes, 123456789);
}

TEST_F(CommandTargetTest, AnImpossibleProfileFailsTheTrialAndNamesTheKey) {
  request_.kind = TrialKind::kProfile;
  Behave("impossible-profile");
  const Outcome outcome = Run().outcome;
  EXPECT_EQ(outcome.state, TrialState::kFailed);
  EXPECT_THAT(outcome.reason,
              HasSubstr("/hook-rank0.json: profile/trainable_num_params is 900; expected"));
}

TEST_F(CommandTargetTest, OnlyBatchSizesThatAreGivenOrNeededAreWritten) {
  Commands();
  EXPECT_FALSE(WrittenConfig().contains("train_batch_size"));
  EXPECT_EQ(WrittenConfig()["gradient_accumulation_steps"], 3);
  request_.ds_config = TrialConfig(4, 1);
  Commands();
  EXPECT_FALSE(WrittenConfig().contains("gradient_accumulation_steps"));
  EXPECT_EQ(WrittenConfig()["train_micro_batch_size_per_gpu"], 4);
  spec_.ds_config = {{"train_batch_size", 8}, {"gradient_accumulation_steps", 1}};
  Commands();
  EXPECT_EQ(WrittenConfig()["train_batch_size"], 8);
  EXPECT_EQ(WrittenConfig()["gradient_accumulation_steps"], 1);
}

TEST_F(CommandTargetTest, TheImportHookIsPutInFrontOfThePythonPath) {
  EXPECT_EQ(Commands()[0].env.count("PYTHONPATH"), 0u);
  const std::string python = MakeHook();
  spec_.environment["PYTHONPATH"] = "/mine";
  for (const RankCommand& command : Commands()) {
    EXPECT_EQ(command.env.at("PYTHONPATH"), python + "/hook:" + python + ":/mine");
    EXPECT_EQ(command.env.at("DSAT_DS_CONFIG"), request_.dir + "/ds_config.json");
    EXPECT_EQ(command.env.count("DSAT_FIXED_STEPS") + command.env.count("DSAT_CONFIG_READ"), 0u);
  }
  request_.steps = 20;
  EXPECT_EQ(Commands()[0].env.at("DSAT_FIXED_STEPS"), "1");
  EXPECT_EQ(Commands()[0].env.at("DSAT_END_PROFILE_STEP"), "19");
  EXPECT_EQ(Commands()[0].env.at("DSAT_SUFFICIENT_STEP"),
            std::to_string(spec_.options.end_profile_step));
  request_.steps = 0;
  spec_.options.compat_determined = true;
  spec_.entrypoint = {"sh", "-c", "cp {ds_config} a.json && python3 t.py"};
  EXPECT_EQ(Commands()[0].env.at("DSAT_FIXED_STEPS"), "1");
  EXPECT_EQ(Commands()[0].env.at("DSAT_CONFIG_READ"), "1");
}

TEST_F(CommandTargetTest, AProfileThatShowsNoSignOfItsConfigSaysHowToReachTheScript) {
  MakeHook();
  Behave("never");
  spec_.entrypoint.resize(4);  // Without --deepspeed_config.
  request_.kind = TrialKind::kProfile;
  const Result silent = Run();
  EXPECT_EQ(silent.outcome.state, TrialState::kFailed);
  EXPECT_THAT(silent.outcome.reason, AllOf(HasSubstr("nothing shows that the script used"),
                                           HasSubstr("--deepspeed_config {ds_config}")));
  spec_.entrypoint[3] = "well";  // It reads the variable.
  EXPECT_EQ(Run().profiles.size(), 1u);
}

TEST_F(CommandTargetTest, AFullRunTrainsWithTheConfigAsItIs) {
  request_.full_run = true;
  spec_.ds_config = request_.ds_config;
  const Result result = Run();
  EXPECT_EQ(result.outcome.state, TrialState::kSucceeded) << result.outcome.reason;
  EXPECT_TRUE(result.points.empty());
  EXPECT_EQ(WrittenConfig(), request_.ds_config);
  EXPECT_EQ(Commands()[0].env.count("TORCH_EXTENSIONS_DIR"), 0u);
  EXPECT_THAT(ReadFile(request_.dir + "/rank0.log"), HasSubstr("full run"));
  Behave("crash");
  EXPECT_EQ(Run().outcome.state, TrialState::kFailed);
}

struct Ending {
  std::string how;
  TrialState state;
  std::string reason;
};
class EndingTest : public CommandTargetTest, public testing::WithParamInterface<Ending> {};

TEST_P(EndingTest, IsReadFromExitAndLogs) {
  Behave(GetParam().how);
  const Result result = Run(std::chrono::milliseconds(GetParam().how == "hang" ? 500 : 15000));
  EXPECT_EQ(ToString(result.outcome.state), ToString(GetParam().state));
  EXPECT_THAT(result.outcome.reason, HasSubstr(GetParam().reason));
  EXPECT_TRUE(result.points.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EndingTest,
    testing::Values(
        // The lost connection of the other rank is a consequence, whichever rank fails first.
        Ending{"oom", TrialState::kInfeasible, "out of device memory: torch.OutOfMemoryError"},
        Ending{"config", TrialState::kInfeasible, "invalid configuration: AssertionError"},
        Ending{"crash", TrialState::kFailed, "exited with code 1: ValueError: a bug in the script"},
        Ending{"port", TrialState::kFailed, "a port, the network or the disk failed"},
        Ending{"never", TrialState::kFailed, "nothing was measured"},
        Ending{"pipe", TrialState::kFailed,
               "nothing was measured; the last error or line of its output is: ValueError: a bug "
               "in the script; the script must train with an engine of deepspeed.initialize()"},
        Ending{"no-result", TrialState::kFailed,
               "ended after 8 optimizer steps, before the measuring was complete"},
        Ending{"short", TrialState::kFailed, "after 2 of the 7 optimizer steps that are needed"},
        Ending{"garbage", TrialState::kFailed,
               "/hook-rank0.json: holds \"0.25 s\\n\uFFFD\"; expected the JSON object"},
        Ending{"no-time", TrialState::kFailed,
               "/hook-rank0.json: step_seconds is [0,0,0,0]; expected a list of numbers > 0"},
        Ending{"ignores-config", TrialState::kFailed,
               "it trained with train_batch_size 32, the config says 24"},
        Ending{"hook-rewrites", TrialState::kFailed,
               "train_micro_batch_size_per_gpu is 3 instead of 4, zero_optimization/stage is 3 "
               "instead of 0"},
        Ending{"hook-one-rank", TrialState::kFailed, "trained with world size 1; expected 2"},
        Ending{"hook-nan", TrialState::kFailed, "the loss of rank 0 is not finite after 2 steps"},
        Ending{"log-nan", TrialState::kFailed, "training diverges: {'loss': nan, 'epoch': 0.2}"},
        Ending{"hook-small-batches", TrialState::kFailed,
               "batches of at most 3 samples, and the config says 4"},
        Ending{"hang", TrialState::kStopped, ""}),
    [](const auto& test_info) {
      std::string name = test_info.param.how;
      std::erase(name, '-');
      return name;
    });

TEST_F(CommandTargetTest, OldResultsAreNotTakenForNewOnes) {
  std::ofstream(request_.dir + "/hook-rank0.json") << R"({"num_steps":9,"step_seconds":[1]})";
  Behave("never");
  const Result result = Run();
  EXPECT_EQ(result.outcome.state, TrialState::kFailed);
  EXPECT_EQ(result.progress, 0);
}

TEST_F(CommandTargetTest, TheTrialsConfigHasMonitorsAndDeepSpeedsTunerOff) {
  request_.ds_config["autotuning"] = {{"enabled", true}};
  const std::vector<RankCommand> commands = Commands();
  const Json config = WrittenConfig();
  EXPECT_FALSE(config.contains("autotuning"));
  EXPECT_THAT(commands[0].env, AllOf(Contains(Pair("DSAT_MEASURE", "steps")),
                                     Contains(Pair("DSAT_START_PROFILE_STEP", "2")),
                                     Contains(Pair("DSAT_END_PROFILE_STEP", "6"))));
  EXPECT_EQ(config["steps_per_print"], 100);
  EXPECT_EQ(config["wall_clock_breakdown"], false);
  EXPECT_EQ(config["wandb"], Json({{"enabled", false}, {"project", "p"}}));
  EXPECT_FALSE(config.contains("tensorboard"));
  EXPECT_THAT(commands[0].argv, Contains(request_.dir + "/ds_config.json"));
  EXPECT_THAT(commands[0].argv, Not(Contains("ds.json")));
  EXPECT_THAT(spec_.entrypoint, Contains("ds.json"));
}

TEST_F(CommandTargetTest, RanksGetTheHyperparametersAndTheExperimentFile) {
  spec_.file = {{"searcher", {{"metric", "loss"}}},
                {"hyperparameters", {{"deepspeed_config", "ds.json"}, {"width", 4}}}};
  const std::vector<RankCommand> commands = Commands();
  const Json hparams = Json::parse(commands[1].env.at("DSAT_HPARAMS"));
  EXPECT_EQ(hparams["width"], 4);
  EXPECT_EQ(hparams["overwrite_deepspeed_args"], WrittenConfig());
  EXPECT_EQ(Json::parse(commands[1].env.at("DSAT_EXPERIMENT")),
            (Json{{"searcher", {{"metric", "loss"}}}}));
}

TEST_F(CommandTargetTest, StartsOneProcessPerSlotWithTorchsEnvironment) {
  const std::vector<RankCommand> commands = Commands();
  ASSERT_EQ(commands.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string text = std::to_string(rank);
    const auto& env = commands[static_cast<size_t>(rank)].env;
    EXPECT_THAT(
        env, AllOf(Contains(Pair("RANK", text)), Contains(Pair("LOCAL_RANK", text)),
                   Contains(Pair("WORLD_SIZE", "2")), Contains(Pair("LOCAL_SIZE", "2")),
                   Contains(Pair("LOCAL_WORLD_SIZE", "2")), Contains(Pair("CROSS_RANK", "0")),
                   Contains(Pair("CROSS_SIZE", "1")), Contains(Pair("MASTER_ADDR", "127.0.0.1")),
                   Contains(Pair("PYTHONUNBUFFERED", "1")), Contains(Pair("DSAT_TRIAL_ID", "7"))));
    EXPECT_THAT(env, Contains(Pair("TORCH_EXTENSIONS_DIR", folder_ / "torch_extensions")));
    EXPECT_EQ(env.count("CUDA_VISIBLE_DEVICES"), 0u);
  }
  EXPECT_EQ(commands[0].env.at("MASTER_PORT"), commands[1].env.at("MASTER_PORT"));
  EXPECT_GT(std::stoi(commands[0].env.at("MASTER_PORT")), 1023);
  EXPECT_EQ(commands[0].work_dir, folder_.path());
}

TEST_F(CommandTargetTest, TheExperimentsEnvironmentIsOnTop) {
  spec_.environment = {{"PYTHONUNBUFFERED", "0"}, {"TORCH_EXTENSIONS_DIR", "/own"}};
  for (const RankCommand& command : Commands()) {
    EXPECT_EQ(command.env.at("PYTHONUNBUFFERED"), "0");
    EXPECT_EQ(command.env.at("TORCH_EXTENSIONS_DIR"), "/own");
  }
}

TEST_F(CommandTargetTest, RanksOnSeveralHostsAreToldWhereTheyAreAndWhereTheyMeet) {
  request_.hosts = {{.name = "a",
                     .reach = {"ssh", "a"},
                     .slots = {0},
                     .address = "10.0.0.1",
                     .environment = {{"NCCL_DEBUG", "INFO"}}},
                    {.name = "b", .reach = {"ssh", "b"}, .slots = {3}}};
  request_.slots = {{0, 0}, {1, 3}};
  const std::vector<RankCommand> commands = Commands();
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_THAT(commands[0].env, Contains(Pair("NCCL_DEBUG", "INFO")));
  for (size_t rank = 0; rank < 2; ++rank) {
    const RankCommand& command = commands[rank];
    const std::string text = std::to_string(rank);
    EXPECT_EQ(command.host, static_cast<int64_t>(rank));
    EXPECT_TRUE(command.shares_folder) << "the ranks report there";
    EXPECT_THAT(command.env, AllOf(Contains(Pair("RANK", text)), Contains(Pair("DSAT_RANK", text)),
                                   Contains(Pair("LOCAL_RANK", "0"))));
    EXPECT_THAT(command.env, Contains(Pair("LOCAL_SIZE", "1")));
    EXPECT_THAT(command.env, Contains(Pair("CROSS_RANK", text)));
    EXPECT_THAT(command.env, Contains(Pair("CROSS_SIZE", "2")));
    EXPECT_THAT(command.env, Contains(Pair("MASTER_ADDR", "10.0.0.1")));
    EXPECT_THAT(command.env, Contains(Pair("CUDA_VISIBLE_DEVICES", rank == 0 ? "0" : "3")));
  }
}

TEST_F(CommandTargetTest, SlotsChooseAmongTheVisibleDevices) {
  request_.slots = {{0, 2}, {0, 3}};
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(Commands()[0].env.at("CUDA_VISIBLE_DEVICES"), "2,3");
  setenv("CUDA_VISIBLE_DEVICES", "4,GPU-ab,6,7", 1);
  EXPECT_EQ(Commands()[0].env.at("CUDA_VISIBLE_DEVICES"), "6,7");
  setenv("CUDA_VISIBLE_DEVICES", "4", 1);
  EXPECT_EQ(Commands()[0].env.count("CUDA_VISIBLE_DEVICES"), 0u);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(CommandTargetTest, AUsersOwnExtensionsFolderIsKept) {
  setenv("TORCH_EXTENSIONS_DIR", "/warm", 1);
  EXPECT_EQ(Commands()[0].env.count("TORCH_EXTENSIONS_DIR"), 0u);
  unsetenv("TORCH_EXTENSIONS_DIR");
}

TEST_F(CommandTargetTest, ALauncherIsRunOnceWithoutRanks) {
  spec_.entrypoint = {"deepspeed", "t.py", "--deepspeed_config", "a.json"};
  const std::vector<RankCommand> commands = Commands();
  ASSERT_EQ(commands.size(), 1u);
  for (const char* name : {"RANK", "WORLD_SIZE", "DSAT_RANK"})
    EXPECT_EQ(commands[0].env.count(name), 0u);
  EXPECT_EQ(commands[0].env.at("PYTHONUNBUFFERED"), "1");
}

TEST_F(CommandTargetTest, WhatCannotWorkIsRefusedAtOnce) {
  EXPECT_THAT(RefusalOf({"python", "train.py", "--deepspeed"}),
              AllOf(HasSubstr("\"python train.py --deepspeed\" does not say where it takes"),
                    HasSubstr("--deepspeed_config {ds_config}")));
  EXPECT_THAT(RefusalOf({"built-in"}), HasSubstr("did you mean \"builtin\"?"));
  MakeHook();
  EXPECT_EQ(RefusalOf({"python", "train.py", "--deepspeed"}), "");
  EXPECT_EQ(RefusalOf({"sh", "-c", "./run | tee log"}), "");
  EXPECT_THAT(RefusalOf({"./train", "x"}), HasSubstr("starts no Python, whose calls"));
  std::ofstream(folder_ / "train") << "#!/usr/bin/python3\n";  // As pip installs programs.
  EXPECT_EQ(RefusalOf({"./train", "x"}), "");
  EXPECT_EQ(RefusalOf({"./train", "{ds_config}"}), "");
  EXPECT_THAT(RefusalOf({"deepspeed", "--num_gpus", "4", "t.py", "--ds_config", "a.json"}),
              HasSubstr("deepspeed would start 4 ranks, expected 2"));
  EXPECT_THAT(RefusalOf({"deepspeed", "--num_nodes=2", "--num_gpus=2", "t.py", "--ds_config", "a"}),
              HasSubstr("would start 4 ranks"));
  // A number after the script is an argument of the script.
  EXPECT_EQ(RefusalOf({"torchrun", "t.py", "--nproc_per_node", "4", "--ds_config", "a.json"}), "");
  spec_.options.end_profile_step = 2;
  EXPECT_THAT(RefusalOf({"./t", "--ds_config", "a.json"}), HasSubstr("expected start < end"));
}

}  // namespace
}  // namespace dsat
