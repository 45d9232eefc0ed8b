// Runs whole searches: real trials on the built-in engine that are killed and resumed, and training
// with the result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"
#include "tests/engine/data/small_tokenizer.h"

namespace dsat {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

const std::string kExperimentFile = std::string(R"(
name: tiny
entrypoint: builtin
resources:
  slots_per_trial: 2
  device_memory: 6MiB
searcher:
  name: single
  max_length: {batches: 6})") + kSmallTraining;
constexpr char kDsConfig[] = R"({
  "train_micro_batch_size_per_gpu": 1,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 100000, "allgather_bucket_size": 100000}
})";

class EndToEndTest : public testing::Test {
 protected:
  void SetUp() override {
    work.Write("deepspeed.yaml", kExperimentFile);
    work.Write("ds_config.json", kDsConfig);
  }

  Json Show(const std::string& db) const {
    return Json::parse(work.Dsat({"show", "1", "--json", "--db", db}).out);
  }

  Workspace work;
};

TEST_F(EndToEndTest, ASearchLeavesTheBestConfigAndTheFullRunTrainsWithIt) {
  const Finished search =
      work.Succeed({"binary", "deepspeed.yaml", "--max-trials", "7", "--metric", "throughput",
                    "--confirm", "2", "--out", "out", "--run-full-experiment"});
  EXPECT_THAT(search.out, AnyOf(HasSubstr("times as fast as submitted"),
                                HasSubstr("keep the submitted configuration: no gain ")));
  EXPECT_THAT(search.err, HasSubstr("micro-batch"));
  EXPECT_EQ((search.out + search.err).find_first_of("\r\x1b"), std::string::npos);  // No terminal.

  const Json shown = Show("dsat.db");
  EXPECT_EQ(shown["state"], "completed");
  EXPECT_EQ(std::ranges::count_if(shown["trials"],
                                  [](const Json& trial) { return !trial.contains("confirms"); }),
            7);
  EXPECT_GT(shown["trials"].size(), 7U);  // The best ones are measured again.
  EXPECT_TRUE(shown["factor_over_submitted"].is_object());
  const Json& best = shown["trials"][shown["best_trial"].get<size_t>()];
  EXPECT_EQ(best["state"], "succeeded");
  for (const char* metric : {"FLOPS_per_gpu", "throughput", "latency", "forward", "backward",
                             "step", "peak_bytes", "loss"})
    EXPECT_GT(best["metrics"][metric]["value"], 0.0) << metric;
  EXPECT_LE(best["metrics"]["peak_bytes"]["value"], 6 * 1024 * 1024);

  const Json written = ReadJsonFile(work.Path("out/ds_config.json"));
  Json merged = written;
  merged.merge_patch(best["ds_config"]);
  EXPECT_EQ(merged, written);
  EXPECT_EQ(written["gradient_clipping"], 1.0);  // A default that was another once is stated.
  EXPECT_TRUE(ReadJsonFile(work.Path("out/metrics.json")).is_object());

  const std::string text = work.Dsat({"show", "1"}).out;
  EXPECT_THAT(text, HasSubstr("\nspeed of a rank: "));
  EXPECT_THAT(text, testing::ContainsRegex("\npeak memory of a rank: [0-9.]+ [KM]iB at "
                                           "micro-batch 1, [0-9.]+ [KM]iB at 2\n"));
  EXPECT_THAT(search.out, HasSubstr("loss"));
  const Finished train = work.Succeed({"train", "deepspeed.yaml", "--ds-config",
                                       "out/ds_config.json", "--steps", "3", "--out", "trained"});
  EXPECT_THAT(train.out, HasSubstr("loss"));
}

TEST_F(EndToEndTest, ThePickIsSoakedAndTrainsLikeTheSubmittedConfiguration) {
  // The global batch stays, and with it the samples of a step.
  Json config = Json::parse(kDsConfig);
  config["train_batch_size"] = 8;
  work.Write("ds_config.json", config.dump());
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "6", "--metric", "throughput", "--out",
                "out", "--confirm", "1", "--soak", "12"});
  EXPECT_THAT(work.Dsat({"show", "1"}).out, HasSubstr(" steps and saved checkpoints, peak "));
  const Json shown = Show("dsat.db");
  const Json& soak = shown["trials"].back();
  EXPECT_EQ(soak["kind"], "soak");
  EXPECT_EQ(soak["state"], "succeeded") << soak["reason"];
  EXPECT_EQ(soak["confirms"], shown["best_trial"]);
  EXPECT_GE(soak["losses"].size(), 12U);
  EXPECT_EQ(soak["rank_peak_bytes"].size(), 2U);
  EXPECT_GT(soak["metrics"]["host_bytes"]["value"], 1e6);
  EXPECT_FALSE(std::filesystem::exists(
      work.Path("out/trials/" + std::to_string(soak["id"].get<int>()) + "/checkpoint")));
  // Every trial, of whatever split and stage, has the losses of the submitted one.
  const Json submitted = shown["trials"][1]["losses"];
  ASSERT_GE(submitted.size(), 6U);
  for (const Json& trial : shown["trials"]) {
    if (trial["kind"] == "profile" || trial["state"] != "succeeded") continue;
    for (size_t i = 0; i < 6; ++i)
      EXPECT_NEAR(trial["losses"][i], submitted[i], 1e-4) << trial["id"];
  }
  const Json metrics = ReadJsonFile(work.Path("out/metrics.json"));
  EXPECT_EQ(metrics["soak_trial"]["trial"], soak["id"]);
  const bool is_submitted = shown["best_trial"] == 1;
  EXPECT_EQ(metrics["verdict"]["losses"]["result"], is_submitted ? "not checked" : "alike");
}

TEST_F(EndToEndTest, ASearchWithItsFullRunGivesOneJsonValue) {
  const Json result = work.DsatJson({"grid", "deepspeed.yaml", "--max-trials", "3", "--confirm",
                                     "0", "--run-full-experiment", "--json"});
  EXPECT_EQ(result["trials"].size(), 3U);
  EXPECT_EQ(result["full_run"]["state"], "succeeded");
  EXPECT_EQ(result["full_run"]["last_step"], 6);
  EXPECT_GT(result["full_run"]["loss"], 0.0);
  EXPECT_EQ(result["full_run"]["checkpoint"], work.Path("dsat-out/1/full/checkpoint/global_step6"));
}

// The search knows before a launch which trials fit: they measure what was predicted, and none of
// them ends for want of memory.
TEST_F(EndToEndTest, NoTrialRunsOutOfMemoryAndPeaksAreThePredictedOnes) {
  const Finished search =
      work.Dsat({"binary", "deepspeed.yaml", "--max-trials", "8", "--search-range-factor", "2",
                 "--confirm", "0", "--json", "--out", "out"});  // Twice as far as fits.
  ASSERT_EQ(search.exit_code, 0) << search.err;
  const Json result = Json::parse(search.out);
  ASSERT_EQ(result["trials"].size(), 8U);
  EXPECT_GT(result["num_not_launched"], 0);
  for (const Json& trial : result["trials"]) {
    ASSERT_EQ(trial["state"], "succeeded") << trial;
    if (trial["kind"] == "profile") continue;
    work.Write("trial.json", trial["ds_config"].dump());
    EXPECT_EQ(work.DsatJson({"estimate", "deepspeed.yaml", "--ds-config", "trial.json",
                             "--json"})["estimate"]["device"]["peak_bytes"]
                  .get<double>(),
              trial["metrics"]["peak_bytes"]["value"].get<double>());
  }
}

TEST_F(EndToEndTest, TheLargestMicroBatchOfAStageIsTheLargestThatRuns) {
  const Json result =
      work.DsatJson({"grid", "deepspeed.yaml", "--max-trials", "2", "--json", "--out", "out"});
  EXPECT_EQ(result["space"]["exact"], true);
  int num_places = 0;
  for (const Json& stage : result["space"]["stages"]) {
    Json config = Json::parse(kDsConfig);
    config["zero_optimization"]["stage"] = stage["stage"];
    for (const auto& [pointer, value] : stage["settings"].items())
      config[Json::json_pointer(pointer)] = value;
    const std::string name = std::to_string(num_places++);
    const auto train = [&](int64_t micro_batch) {
      config["train_micro_batch_size_per_gpu"] = micro_batch;
      work.Write("config.json", config.dump());
      return work.Dsat({"train", "deepspeed.yaml", "--ds-config", "config.json", "--steps", "2",
                        "--out", "trained-" + std::to_string(micro_batch) + "-" + name});
    };
    const int64_t largest = stage["approx_max_micro_batch"];
    const Finished fits = train(largest);
    EXPECT_EQ(fits.exit_code, 0) << stage << fits.err;
    const Finished does_not = train(largest + 1);
    EXPECT_NE(does_not.exit_code, 0) << stage;
    EXPECT_THAT(does_not.err, HasSubstr("of 6.0 MiB in use")) << stage;
  }
}

// Neither a stage nor offload fits: the device holds one sample with activation checkpointing
// alone, and the host nothing but these.
TEST_F(EndToEndTest, AutoPicksActivationCheckpointingWhereNothingElseFits) {
  std::string file = kExperimentFile;
  for (const auto& [from, to] :
       {std::pair{"device_memory: 6MiB", "device_memory: 4700KiB\n  host_memory: 200KiB"},
        {"n_layer: 2", "n_layer: 4"},
        {"n_positions: 32", "n_positions: 128"},
        {"seq_len: 32", "seq_len: 128"}})
    file.replace(file.find(from), std::string(from).size(), to);
  work.Write("deepspeed.yaml", file);
  Json config = Json::parse(kDsConfig);
  for (const char* bucket : {"reduce_bucket_size", "allgather_bucket_size"})
    config["zero_optimization"][bucket] = 1'000'000;
  work.Write("ds_config.json", config.dump());
  const Json result = work.DsatJson(
      {"auto", "deepspeed.yaml", "--max-trials", "4", "--confirm", "0", "--json", "--out", "out"});
  for (const Json& trial : result["trials"]) {
    if (trial["kind"] == "search") {
      EXPECT_EQ(trial["state"], "succeeded") << trial;
    }
  }
  const Json picked = ReadJsonFile(work.Path("out/ds_config.json"));
  EXPECT_GE(picked["pipeline"]["activation_checkpoint_interval"], 1);
  const Json shown = Show("dsat.db");
  EXPECT_THAT(shown["space"]["left_out"].dump(), HasSubstr("predicted not to fit one sample"));

  const Json published =
      work.DsatJson({"auto", "deepspeed.yaml", "--space", "published", "--max-trials", "4",
                     "--confirm", "0", "--json", "--out", "out2"});
  for (const Json& place : published["space"]["stages"])
    EXPECT_TRUE(place["settings"].empty());
}

// The inputs of layers rest in host memory: the submitted configuration needs more of it than there
// is. It runs all the same, and so do smaller ones.
TEST_F(EndToEndTest, ATrialWithoutEnoughHostMemoryIsInfeasibleAndTheSearchGoesOn) {
  std::string file = kExperimentFile;
  const std::string device = "device_memory: 6MiB";
  file.replace(file.find(device), device.size(), "device_memory: 12MiB\n  host_memory: 200KiB");
  work.Write("deepspeed.yaml", file);
  Json config = Json::parse(kDsConfig);
  config["train_micro_batch_size_per_gpu"] = 16;
  config["activation_checkpointing"]["cpu_checkpointing"] = true;
  work.Write("ds_config.json", config.dump());
  const Json result = work.DsatJson({"binary", "deepspeed.yaml", "--max-trials", "7", "--confirm",
                                     "0", "--json", "--out", "out"});
  ASSERT_EQ(result["trials"].size(), 7U);
  for (const Json& trial : result["trials"]) {
    if (trial["kind"] != "submitted") {
      EXPECT_EQ(trial["state"], "succeeded") << trial;
      continue;
    }
    EXPECT_EQ(trial["state"], "infeasible");
    EXPECT_THAT(trial["reason"].get<std::string>(), HasSubstr("host memory: "));
    EXPECT_THAT(trial["reason"].get<std::string>(), testing::EndsWith("of 200.0 KiB in use"));
  }
}

TEST_F(EndToEndTest, EveryMethodSearchesTheUsersOwnSpace) {
  work.Write("deepspeed.yaml", kExperimentFile + R"(
search_space:
  /zero_optimization/reduce_bucket_size: [30000, 60000]
  /zero_optimization/stage3_prefetch_bucket_size: {min: 1000, max: 2000}
  /train_micro_batch_size_per_gpu: {min: 2, max: 6, divisible_by: 2}
)");
  for (const char* method : {"auto", "asha", "binary", "random", "grid"}) {
    const Json result =
        work.DsatJson({method, "deepspeed.yaml", "--max-trials", "4", "--confirm", "0", "--json",
                       "--zero-stages", "2", "3", "--out", std::string("own-") + method});
    int num_searched = 0;
    for (const Json& trial : result["trials"]) {
      if (trial["kind"] != "search") continue;
      ++num_searched;
      const Json& config = trial["ds_config"];
      const Json& zero = config["zero_optimization"];
      EXPECT_THAT(config["train_micro_batch_size_per_gpu"].get<int>(), AnyOf(2, 4, 6)) << method;
      if (std::string(method) == "grid") continue;  // It varies keys after the sizes.
      EXPECT_THAT(zero["reduce_bucket_size"].get<int>(), AnyOf(30000, 60000)) << method;
      if (zero["stage"] != 3) continue;
      EXPECT_THAT(zero["stage3_prefetch_bucket_size"].get<int>(), AnyOf(1000, 2000)) << method;
    }
    EXPECT_GT(num_searched, 0) << method;
  }
}

TEST_F(EndToEndTest, TheEnvironmentReachesTheTrials) {
  work.Write("deepspeed.yaml",
             kExperimentFile + "environment:\n  environment_variables: [LD_PRELOAD=/none.so]\n");
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "2", "--out", "out"});
  EXPECT_THAT(ReadFile(work.Path("out/trials/0/attempt0/rank0.log")), HasSubstr("/none.so"));
}

TEST_F(EndToEndTest, TheStatusLineFitsTheTerminal) {
  constexpr size_t kColumns = 60;
  constexpr char kRedraw[] = "\r\x1b[K";
  const std::string shown = work.DsatOnTerminal(
      {"grid", "deepspeed.yaml", "--max-trials", "3", "--confirm", "1"}, kColumns);
  int drawn = 0;
  for (size_t at = shown.find(kRedraw); at != shown.npos; at = shown.find(kRedraw, at + 1)) {
    const size_t begin = at + std::string(kRedraw).size();
    const std::string line = shown.substr(begin, shown.find('\r', begin) - begin);
    if (line.find("/3 trials") != 1) continue;  // The trial of this line has ended.
    EXPECT_LT(line.size(), kColumns);
    ++drawn;
  }
  EXPECT_GT(drawn, 3);
  EXPECT_THAT(shown, HasSubstr("0/3 trials, running 0: profile"));
  EXPECT_THAT(shown,
              testing::ContainsRegex("2/3 trials, running 2: stage [0-9], micro-batch [0-9]+"));
  EXPECT_THAT(shown, testing::ContainsRegex("running 1: as submitted, step [0-9]+"));
}

TEST_F(EndToEndTest, ATrainingOnATerminalShowsHowFarItIs) {
  const std::string shown =
      work.DsatOnTerminal({"train", "deepspeed.yaml", "--out", "trained", "--steps", "40"}, 100);
  // One redraw at least, of the first step, which fits as a whole.
  EXPECT_THAT(shown, testing::ContainsRegex("\\[#* +\\] [0-9]+/40  loss [0-9.]+  [0-9.]+ tokens/s  "
                                            "[0-9]+ s left  lr 0.001"));
}

TEST_F(EndToEndTest, TrainPrintsTheLastStepAndSaysThatItGoesOnFromItsCheckpoint) {
  const auto train = [this](const std::string& steps) {
    return work.Succeed({"train", "deepspeed.yaml", "--out", "trained", "--steps", steps});
  };
  const Finished first = train("30");
  EXPECT_THAT(first.out, HasSubstr("step     30/30  loss"));
  EXPECT_THAT(first.out, testing::ContainsRegex(
                             " ms  [0-9.]+ samples/s  [0-9.]+ tokens/s  [0-9.]+ [MG]FLOP/s\n"));
  EXPECT_THAT(first.err, HasSubstr("the checkpoint is in " + work.Path("trained/checkpoint")));
  EXPECT_THAT(first.err, testing::Not(HasSubstr("continuing from")));

  const Finished again = train("30");
  EXPECT_EQ(again.out, "");
  EXPECT_THAT(again.err,
              HasSubstr("continuing from " + work.Path("trained/checkpoint/global_step30")));
  EXPECT_THAT(again.err, HasSubstr("nothing left to train"));

  const Finished further = train("40");
  EXPECT_THAT(further.out, HasSubstr("step     40/40  loss"));
  EXPECT_THAT(further.out, testing::Not(HasSubstr("step      1/40")));
}

// The rates of a training are those by which its configuration was chosen: of a pipeline, and of
// recomputation, which does not count.
TEST_F(EndToEndTest, TrainCountsTheSamplesAndFlopsThatASearchMeasures) {
  Json config = Json::parse(kDsConfig);
  config["gradient_accumulation_steps"] = 2;
  config["pipeline"] = {{"stages", 2}, {"activation_checkpoint_interval", 1}};
  work.Write("ds_config.json", config.dump());
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "2", "--out", "out"});
  const Json metrics = Show("dsat.db")["trials"][1]["metrics"];
  const double flops_per_sample = metrics["FLOPS_per_gpu"]["value"].get<double>() /
                                  metrics["throughput"]["value"].get<double>();
  const Finished train = work.Succeed({"train", "deepspeed.yaml", "--steps", "3", "--json"});
  const Json step = Json::parse(train.out.substr(0, train.out.find('\n')));
  const double throughput = step.at("throughput").get<double>();
  EXPECT_NEAR(throughput * step.at("latency_ms").get<double>() / 1000, 2, 1e-6);
  EXPECT_NEAR(step.at("FLOPS_per_gpu").get<double>() / throughput, flops_per_sample,
              1e-6 * flops_per_sample);
}

TEST_F(EndToEndTest, TrainThatIsInterruptedSavesACheckpointAndGoesOnFromIt) {
  const std::vector<std::string> train = {"train",  "deepspeed.yaml",        "--steps",
                                          "100000", "--checkpoint-interval", "7"};
  const pid_t pid = work.StartDsat(train, "train");
  const std::string latest = work.Path("dsat-out/train/deepspeed/checkpoint/latest");
  EXPECT_TRUE(work.WaitUntilSaid("dsat-out/train/deepspeed/checkpoint/latest"));
  kill(pid, SIGTERM);
  EXPECT_EQ(WaitFor(pid), 130);
  const std::string tag = ReadFile(latest);
  const std::string newest = work.Path("dsat-out/train/deepspeed/checkpoint/" + tag);
  EXPECT_THAT(ReadFile(work.Path("train.err")), HasSubstr("continues from " + newest));
  EXPECT_TRUE(std::filesystem::exists(newest));

  const int64_t steps = std::stoll(tag.substr(std::string("global_step").size())) + 1;
  const Finished again =
      work.Succeed({"train", "deepspeed.yaml", "--steps", std::to_string(steps)});
  EXPECT_THAT(again.err, HasSubstr("continuing from " + newest));
}

TEST_F(EndToEndTest, ASearchThatIsKilledGoesOnAsIfNothingHadHappened) {
  const std::vector<std::string> command = {
      "random", "deepspeed.yaml", "--max-trials", "8",         "--max-concurrent-trials",
      "1",      "--out",          "own/out",      "--confirm", "0"};
  const pid_t pid = work.StartDsat(command, "killed");
  EXPECT_TRUE(work.WaitUntilSaid("killed.err", "trial   1"));
  const Finished second = work.Fail({"resume", "1"}, "experiment 1 is being run by process");
  EXPECT_EQ(CountLines(second.err), 1) << second.err;
  kill(pid, SIGKILL);
  WaitFor(pid);
  work.Succeed({"resume", "1"});
  EXPECT_TRUE(std::filesystem::exists(work.Path("own/out/ds_config.json")));  // As it was told.

  const Json trials = Show("dsat.db")["trials"];
  EXPECT_EQ(trials.size(), 8U);
  for (size_t i = 0; i < trials.size(); ++i) {
    EXPECT_EQ(trials[i]["id"], i);
    EXPECT_NE(trials[i]["state"], "running");
  }
}

TEST_F(EndToEndTest, ATrainedModelIsEvaluatedAndWritesText) {
  std::string config = kExperimentFile;
  const std::string data_ends = "seq_len: 32}";
  config.insert(config.find(data_ends) + data_ends.size() - 1, ", validation: {split: 0.05}");
  work.Write("validated.yaml", config);
  const Finished trained =
      work.Succeed({"train", "validated.yaml", "--out", "trained", "--steps", "20",
                    "--eval-interval", "10", "--eval-batches", "1", "--keep", "2", "--keep-best"});
  EXPECT_TRUE(std::filesystem::exists(work.Path("trained/checkpoint/global_step18")));
  EXPECT_TRUE(std::filesystem::exists(work.Path("trained/checkpoint/global_step20")));
  EXPECT_FALSE(std::filesystem::exists(work.Path("trained/checkpoint/global_step16")));
  EXPECT_THAT(trained.out, HasSubstr("step     10/20  validation loss"));
  EXPECT_THAT(trained.out, HasSubstr("step     20/20  validation loss"));

  const std::string checkpoint = "trained/checkpoint";
  const Json result =
      work.DsatJson({"eval", "validated.yaml", "--checkpoint", checkpoint, "--json"});
  EXPECT_EQ(result.at("step"), 20);
  EXPECT_LT(result.at("loss").get<double>(), 5.5);  // ln 256 = 5.55

  const auto generate = [&](const std::string& seed) {
    return work.Succeed({"generate", "validated.yaml", "--checkpoint", checkpoint, "--prompt",
                         "The ", "--max-new-tokens", "12", "--seed", seed, "--json"});
  };
  const Finished text = generate("1");
  EXPECT_EQ(Json::parse(text.out).at("samples").size(), 1u);
  EXPECT_EQ(generate("1").out, text.out);
  EXPECT_NE(generate("2").out, text.out);

  const Finished without =
      work.Fail({"eval", "deepspeed.yaml", "--checkpoint", checkpoint},
                "deepspeed.yaml: /hyperparameters/data has no \"validation\"; expected");
  EXPECT_EQ(std::ranges::count(without.err, '\n'), 1);
}

TEST_F(EndToEndTest, AModelOfATokenizerTakesAndWritesText) {
  setenv("XDG_CACHE_HOME", work.Path("cache").c_str(), 1);
  work.Write("tokenizer.json", engine::SmallTokenizer().dump());
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += "{\"text\": \"abx\"}\n";  // The tokens 256, x and the one that ends a document.
  work.Write("data.jsonl", lines);
  work.Write("words.yaml", R"(entrypoint: builtin
hyperparameters:
  train_batch_size: 4
  optimizer: {type: Adam, params: {lr: 0.01}}
  model: {type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 16, vocab_size: 259}
  data: {type: jsonl, path: data.jsonl, tokenizer: tokenizer.json, seq_len: 16}
)");
  work.Succeed({"train", "words.yaml", "--out", "words", "--steps", "60"});
  EXPECT_EQ(work.DsatJson({"generate", "words.yaml", "--checkpoint", "words/checkpoint", "--prompt",
                           "abxab", "--temperature", "0", "--json"})
                .at("samples"),
            Json({"x"}));  // And the document ends.
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace dsat
