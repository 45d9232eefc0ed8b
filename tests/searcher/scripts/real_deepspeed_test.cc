// Tunes scripts with the real DeepSpeed, Hugging Face's packages and the real dsat. Skipped where
// the Python of DSAT_TEST_PYTHON (/usr/bin/python3 if it is not set) cannot import deepspeed.
#include "tests/searcher/scripts/real_deepspeed.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "searcher/attempt.h"
#include "searcher/scripts/command_target.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

double ValueOf(const Json& trial, const char* metric) {
  return trial.at("metrics").at(metric).at("value");
}

TEST_F(RealDeepSpeedTest, ASearchMeasuresTrialsAndItsBestConfigTrains) {
  work_.Succeed({"random", "deepspeed.yaml", "--max-trials", "3", "--metric", "throughput",
                 "--train-batch-size", "16", "--end-profile-step", "8", "--confirm", "0", "--out",
                 "out"});
  const Json shown = Show();
  EXPECT_EQ(shown["state"], "completed");
  EXPECT_GT(shown["profile"]["num_params"], 400'000);
  ASSERT_EQ(shown["trials"].size(), 3U);
  for (const Json& trial : shown["trials"]) {
    EXPECT_EQ(trial["state"], "succeeded") << trial.dump(2);
    if (trial["id"] == 0) continue;  // It profiles the model and measures no time.
    // After the profiled step 3 come 5 steps, and more until half a second has passed; some may be
    // of the warm-up.
    EXPECT_GE(trial["metrics"]["latency"]["samples"], 5) << trial.dump(2);
    EXPECT_LE(trial["metrics"]["latency"]["samples"], 30) << trial.dump(2);
    // Both are medians: their product is the batch if all steps take the same time.
    const double samples = ValueOf(trial, "throughput") * ValueOf(trial, "latency") / 1e3;
    const double batch = trial["ds_config"]["train_batch_size"];
    EXPECT_GE(samples, batch - 0.6) << trial.dump(2);
    EXPECT_LE(samples, 5 * batch) << trial.dump(2);
    for (const char* metric : {"FLOPS_per_gpu", "forward", "backward", "step"})
      EXPECT_GT(ValueOf(trial, metric), 0) << metric;
  }

  // The result is an ordinary config: the script trains with it outside dsat.
  const Json written = ReadJsonFile(work_.Path("out/ds_config.json"));
  EXPECT_FALSE(written.contains("autotuning"));
  EXPECT_TRUE(written.contains("gradient_clipping")) << written;
  EXPECT_TRUE(written["zero_optimization"].contains("overlap_comm")) << written;
  const Json versions = ReadJsonFile(work_.Path("out/metrics.json"))["versions"];
  EXPECT_TRUE(versions.contains("deepspeed") && versions.contains("torch")) << versions;
  work_.Write("train.yaml", std::regex_replace(ReadFile(work_.Path("deepspeed.yaml")),
                                               std::regex("train.py"), "train.py --steps 10"));
  work_.Succeed({"train", "train.yaml", "--ds-config", "out/ds_config.json", "--start-timeout", "1",
                 "--out", "full"});
  EXPECT_THAT(ReadFile(work_.Path("full/rank0.log")), testing::HasSubstr("step 10: loss"));
}

TEST_F(RealDeepSpeedTest, TheSpaceIsShownAfterOneProfilingTrial) {
  work_.Write("deepspeed.yaml",
              std::regex_replace(ReadFile(work_.Path("deepspeed.yaml")),
                                 std::regex("slots_per_trial: 2"), "slots_per_trial: 1"));
  const Json space = work_.DsatJson(
      {"space", "deepspeed.yaml", "--zero-stages", "1", "--train-batch-size", "any", "--json"});
  EXPECT_GT(space["profile"]["num_params"], 400'000);
  EXPECT_EQ(space["best"].size(), 10U);
  EXPECT_FALSE(space["best"][0]["exact"]);
}

// The names of the files that the launches of the first trial have left.
std::vector<std::string> FilesOfFirstTrial(const Workspace& work) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(work.Path("out/trials/0")))
    names.push_back(entry.path().lexically_relative(work.Path("out/trials/0")));
  return names;
}

TEST_F(RealDeepSpeedTest, ADryRunTakesThePlaceOfTheProfilingLaunch) {
  const std::vector<std::string> search = {
      "auto", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0", "--out", "out"};
  work_.Succeed(search);
  const Json profile = Show()["profile"];
  EXPECT_GT(profile["forward_flops_per_sample"], 0);
  ASSERT_FALSE(profile["dry_places"].empty()) << profile.dump(2);  // All stages, if there is time.
  const std::vector<std::string> names = FilesOfFirstTrial(work_);
  EXPECT_THAT(names, testing::Contains("attempt0/hook-rank0.json"));
  EXPECT_THAT(names, testing::Not(testing::Contains("attempt0/hook-rank1.json")));
  EXPECT_EQ(Show()["trials"][1]["kind"], "submitted");
  work_.Succeed({"resume", "1"});  // A replay needs no dry run.
}

TEST_F(RealDeepSpeedTest, ALaunchMeasuresTheProfileWhereADryRunCannotFollow) {
  std::string script = ReadFile(work_.Path("train.py"));
  const size_t at = script.find("            engine.backward(loss)");
  ASSERT_NE(at, std::string::npos);
  work_.Write(
      "train.py",
      script.insert(at, "            ids = next(engine.parameters())\n            ids[ids > 0]\n"));
  const Finished search = work_.Succeed(
      {"auto", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0", "--out", "out"});
  EXPECT_THAT(search.err, testing::ContainsRegex(
                              "trial 0 is tried again: a launch measures the profile, because "
                              "the dry run gives none: .*train.py: line .* depends on values"));
  EXPECT_THAT(FilesOfFirstTrial(work_), testing::Contains("attempt1/hook-rank1.json"));
  EXPECT_TRUE(Show()["profile"]["dry_places"].empty());
}

TEST_F(RealDeepSpeedTest, AutoValuesAreWhatTheTrainersArgumentsSay) {
  if (!HasPackage("transformers")) GTEST_SKIP() << kNoDeepSpeed;
  const Json trials =
      Tune("hf_trainer.py",
           "WANDB_MODE=offline " + Python() +
               " hf_trainer.py --deepspeed ds.json --per_device_train_batch_size 4"
               " --gradient-accumulation-steps=2 --use_cpu true --bf16 false --max_steps 20"
               " --output_dir model --report_to none --save_strategy no --learning_rate 2e-3 | cat",
           R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
               "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
               "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": true}},
               "zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"}})",
           1, 3);
  EXPECT_EQ(trials.at(1)["kind"], "submitted");
  EXPECT_EQ(trials.at(1)["ds_config"]["train_micro_batch_size_per_gpu"], 4);
  EXPECT_EQ(trials.at(1)["ds_config"]["gradient_accumulation_steps"], 2);
  EXPECT_NE(trials.at(2)["ds_config"]["train_micro_batch_size_per_gpu"], 4);
  EXPECT_EQ(
      ReadJsonFile(work_.Path("out/trials/1/attempt0/hook-rank0.json"))["ran"]["train_batch_size"],
      8);
  const Json best = ReadJsonFile(work_.Path("out/ds_config.json"));
  EXPECT_EQ(best["gradient_clipping"], "auto");
  EXPECT_THAT(ReadFile(work_.Path("out/command.txt")),
              testing::HasSubstr("--per_device_train_batch_size " +
                                 best["train_micro_batch_size_per_gpu"].dump()));
}

TEST_F(RealDeepSpeedTest, TheConfigOfAcceleratesOwnConfigIsTuned) {
  if (!HasPackage("accelerate")) GTEST_SKIP() << kNoDeepSpeed;
  work_.Write("acc.yaml",
              "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
              "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero3_init_flag: false\n"
              "num_processes: 2\nnum_machines: 1\nmachine_rank: 0\nuse_cpu: false\n");
  Tune("accelerate_loop.py",
       Python() + " -m accelerate.commands.launch --config_file acc.yaml accelerate_loop.py",
       R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
               "zero_allow_untested_optimizer": true, "zero_optimization": {"stage": 1}})",
       2, 2);
}

// A program that starts torchrun itself, and takes the trainer's arguments from a file.
TEST_F(RealDeepSpeedTest, AProgramThatStartsALauncherIsTuned) {
  if (!HasPackage("transformers")) GTEST_SKIP() << kNoDeepSpeed;
  std::filesystem::create_directory(work_.Path("bin"));
  work_.Write("bin/llamafactory-cli",
              "#!" + Python() + "\n" +
                  ReadFile(DSAT_SOURCE_DIR "/tests/searcher/scripts/fake_llamafactory.py"));
  std::filesystem::permissions(work_.Path("bin/llamafactory-cli"),
                               std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (work_.Path("bin") + ":" + path).c_str(), 1);
  work_.Write("sft.yaml",
              "deepspeed: ds.json\nper_device_train_batch_size: 4\nuse_cpu: true\nbf16: false\n"
              "max_steps: 20\noutput_dir: model\nreport_to: none\nsave_strategy: \"no\"\n");
  const Json trials = Tune("hf_trainer.py", "llamafactory-cli train sft.yaml",
                           R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
               "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 1},
               "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": true}}})",
                           2, 2);
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(trials.at(1)["ds_config"]["train_micro_batch_size_per_gpu"], 4);
  EXPECT_TRUE(std::filesystem::exists(work_.Path("out/trials/1/attempt0/hook-rank1.json")));
  EXPECT_TRUE(std::filesystem::exists(work_.Path("out/trials/1/attempt0/host0.log")));
}

TEST_F(RealDeepSpeedTest, TheProgramOfTrlIsTuned) {
  if (!HasPackage("trl")) GTEST_SKIP() << kNoDeepSpeed;
  work_.Write("tiny_model.py", ReadFile(DSAT_SOURCE_DIR "/tests/searcher/scripts/tiny_model.py"));
  ASSERT_EQ(std::system(
                ("cd " + work_.Path(".") + " && " + Python() + " tiny_model.py >log 2>&1").c_str()),
            0)
      << ReadFile(work_.Path("log"));
  Tune("hf_trainer.py",
       "HF_HUB_OFFLINE=1 " + Python().substr(0, Python().rfind('/')) +
           "/trl sft --model_name_or_path tiny --dataset_name ./texts --deepspeed ds.json"
           " --per_device_train_batch_size 4 --gradient_accumulation_steps 1 --use_cpu true"
           " --bf16 false --max_steps 20 --max_length 32 --output_dir model --report_to none"
           " --save_strategy no",
       R"({"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
               "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": true})",
       1, 2);
  EXPECT_EQ(Show()["profile"]["trainer"]["gradient_checkpointing"], true);  // TRL's default.
}

TEST_F(RealDeepSpeedTest, ExpertsThatTheProfileFindsAreDistributed) {
  if (!HasPackage("transformers") || !HasPackage("deepspeed.module_inject.auto_ep"))
    GTEST_SKIP() << kNoDeepSpeed;
  work_.Write("experts.py", ReadFile(DSAT_SOURCE_DIR "/tests/searcher/scripts/experts.py"));
  work_.Write("ds.json", R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": true}}})");
  work_.Write("experts.yaml", "name: experts\nentrypoint: " + Python() +
                                  " experts.py --deepspeed_config ds.json\n"
                                  "resources: {slots_per_trial: 2, device_memory: 64MiB}\n"
                                  "hyperparameters: {deepspeed_config: ds.json}\n"
                                  "search_space: {/expert_parallel/autoep_size: [2, 4],"
                                  " /train_micro_batch_size_per_gpu: [2]}\n");
  work_.Succeed({"random", "experts.yaml", "--max-trials", "4", "--zero-stages", "1", "--confirm",
                 "0", "--end-profile-step", "8", "--out", "out"});
  const Json shown = Show();
  EXPECT_EQ(shown["profile"]["trainer"]["num_experts"], 6);
  std::vector<std::vector<double>> losses;
  for (const Json& trial : shown["trials"]) {
    if (trial["kind"] == "profile") continue;
    EXPECT_EQ(trial["state"], "succeeded") << trial.dump(2);
    const Json hook =
        ReadJsonFile(work_.Path("out/trials/" + trial["id"].dump() + "/attempt0/hook-rank0.json"));
    losses.push_back(hook["losses"].get<std::vector<double>>());
    losses.back().resize(6);
    const bool is_distributed = trial["kind"] == "search";
    EXPECT_EQ(trial["ds_config"].contains("expert_parallel"), is_distributed) << trial.dump(2);
    EXPECT_GT(hook["flops"], 0);
  }
  // Four ranks would be needed for a size of 4, which is refused without a launch.
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_THAT(losses[1], testing::Pointwise(testing::DoubleNear(1e-3), losses[0]));
}

// Two hosts that this machine simulates, each with one rank.
TEST_F(RealDeepSpeedTest, LaunchersStartTheirRanksOnEachHost) {
  const std::string bin = Python().substr(0, Python().rfind('/') + 1);
  work_.Write("hosts", "w0 slots=1\nw1 slots=1\n");
  work_.Write("ranks.py",
              "import os\n"
              "names = ('DSAT_TEST_HOST', 'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')\n"
              "print('ranks:', *(os.environ[name] for name in names))\n");
  const std::vector<std::string> on_hosts = {"--hostfile", "hosts", "--ssh",
                                             DSAT_SOURCE_DIR "/tests/searcher/hosts/fake_ssh.sh"};
  for (const std::string launcher : {"torchrun", "deepspeed"}) {
    if (!std::filesystem::exists(bin + launcher)) GTEST_SKIP() << kNoDeepSpeed;
    work_.Write("ranks.yaml", "name: ranks\nentrypoint: " + bin + launcher +
                                  " ranks.py --deepspeed_config {ds_config}\n"
                                  "resources: {slots_per_trial: 2, device_memory: 64MiB}\n"
                                  "hyperparameters: {deepspeed_config: ds_config.json}\n");
    std::vector<std::string> args = {"train", "ranks.yaml", "--out", launcher};
    args.insert(args.end(), on_hosts.begin(), on_hosts.end());
    work_.Succeed(args);
    EXPECT_THAT(ReadFile(work_.Path(launcher + "/host0.log")),
                testing::HasSubstr("ranks: w0 0 0 2 127.0.0.2"));
    EXPECT_THAT(ReadFile(work_.Path(launcher + "/host1.log")),
                testing::HasSubstr("ranks: w1 1 0 2 127.0.0.2"));
  }
}

// failing_train.py as one launch of a trial.
class FailingScript {
 public:
  FailingScript(const Workspace& work, const std::string& how, int64_t num_ranks) {
    spec_.entrypoint = {Python(), work.Path("failing_train.py"), how, "--deepspeed_config",
                        "ds_config.json"};
    spec_.model_dir = work.Path(".");
    spec_.slots_per_trial = num_ranks;
    spec_.options.end_profile_step = 8;
    LaunchRequest request;
    request.dir = work.Path("trials/" + how);
    request.ds_config = {{"train_micro_batch_size_per_gpu", 4},
                         {"gradient_accumulation_steps", 1},
                         {"train_batch_size", 4 * num_ranks},
                         {"optimizer", {{"type", "AdamW"}, {"params", {{"torch_adam", true}}}}}};
    std::filesystem::create_directories(request.dir);
    target_ = MakeCommandTarget(spec_);
    AttemptLimits limits;
    if (how == "hang" || how == "swallow") limits.hang = std::chrono::seconds(8);
    attempt_.emplace(BuildFolder() + "/dsat", target_.get(), request, limits);
  }

  // nullopt while it runs.
  std::optional<Outcome> Poll() {
    const AttemptNews news = attempt_->Observe();
    if (news.measured) attempt_->OnMeasured(/*point=*/true, /*profile=*/false);
    const std::optional<AttemptEnd> end = attempt_->End();
    return end ? std::optional(end->outcome) : std::nullopt;
  }

 private:
  ExperimentSpec spec_;
  std::unique_ptr<LaunchTarget> target_;
  std::optional<Attempt> attempt_;
};

// All at the same time, since most of it is the start of Python. PyTorch may abort a process that
// ends by an exception.
TEST_F(RealDeepSpeedTest, EachWayToFailEndsInItsClassWithTheScriptsOwnWords) {
  work_.Write("failing_train.py",
              ReadFile(DSAT_SOURCE_DIR "/tests/searcher/scripts/failing_train.py"));
  struct Case {
    std::string how;
    int64_t num_ranks;
    TrialState state;
    std::vector<std::string> words;
    std::optional<Outcome> outcome = {};
  };
  std::vector<Case> cases = {
      {"import", 2, TrialState::kFailed, {"No module named 'a_module_that_is_not_there'"}},
      {"exception", 2, TrialState::kFailed, {"rank 1 ", "ValueError: sample 7 is broken"}},
      {"hang",
       1,
       TrialState::kFailed,
       {"no progress for 8 s (--hang-timeout), the last step was 2"}},
      {"nan", 1, TrialState::kFailed, {"the loss of rank 0 is not finite after "}},
      {"memory", 1, TrialState::kFailed, {"out of host memory: ", "can't allocate memory"}},
      {"garbage",
       1,
       TrialState::kFailed,
       {"garbage/hook-rank0.json", "0.25 s per step", "dsat.report()"}},
      {"swallow", 1, TrialState::kSucceeded, {}}};
  std::map<std::string, FailingScript> running;
  for (const Case& one : cases)
    running.try_emplace(one.how, work_, one.how, one.num_ranks);
  const auto latest = std::chrono::steady_clock::now() + std::chrono::minutes(3);
  const auto is_over = [](const Case& one) { return one.outcome.has_value(); };
  while (!std::all_of(cases.begin(), cases.end(), is_over)) {
    ASSERT_LT(std::chrono::steady_clock::now(), latest);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (Case& one : cases)
      if (!one.outcome) one.outcome = running.at(one.how).Poll();
  }
  EXPECT_THAT(ProcessesNaming(work_.Path("failing_train.py")), testing::IsEmpty());
  for (const Case& one : cases) {
    SCOPED_TRACE(one.how);
    EXPECT_EQ(one.outcome->state, one.state) << one.outcome->reason;
    for (const std::string& words : one.words)
      EXPECT_THAT(one.outcome->reason, testing::HasSubstr(words));
  }
}

TEST_F(RealDeepSpeedTest, AWrongCommandIsNotLaunched) {
  work_.Write("train.py", "import argparse, deepspeed\nargparse.ArgumentParser().parse_args()\n");
  for (const char* said :
       {"error: unrecognized arguments: ", "train.py: no such file, which the command starts"}) {
    const Finished search = work_.Dsat({"auto", "deepspeed.yaml"});
    EXPECT_NE(search.exit_code, 0);
    EXPECT_THAT(search.out + search.err, testing::HasSubstr(said));
    EXPECT_THAT(search.out + search.err, testing::Not(testing::HasSubstr("a launch measures")));
    std::filesystem::remove(work_.Path("train.py"));
  }
}

TEST_F(RealDeepSpeedTest, AScriptThatCrashesFailsWithItsLastWords) {
  work_.Write("train.py", "raise ValueError('a bug of mine')\n");
  const Finished search = work_.Dsat({"random", "deepspeed.yaml", "--max-trials", "2"});
  EXPECT_NE(search.exit_code, 0);
  EXPECT_THAT(search.out + search.err, testing::HasSubstr("a bug of mine"));
}

}  // namespace
}  // namespace dsat
