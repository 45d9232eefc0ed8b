// Checks output and exit codes of the real binary: help, usage errors, bad input, ask and tell,
// results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/files.h"
#include "base/json.h"
#include "searcher/search/experiment.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kDsConfig[] = R"({
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 1}
})";

constexpr char kProfile[] = R"({"num_params": 1000000, "trainable_num_params": 1000000,
  "activation_bytes_per_sample": 1000000, "device_memory_bytes": 64000000})";

std::string ExperimentFile(const std::string& data_path = "text.txt") {
  return "name: tiny\n"
         "entrypoint: builtin\n"
         "resources:\n  slots_per_trial: 2\n  device_memory: 64MiB\n"
         "searcher:\n  name: single\n  max_length: {batches: 4}\n"
         "hyperparameters:\n  deepspeed_config: ds_config.json\n"
         "  model: {type: gpt2, n_layer: 2, n_embd: 32, n_head: 2, n_positions: 32, vocab_size: "
         "256}\n"
         "  data: {type: text, path: " +
         data_path + ", seq_len: 32}\n";
}

class OutputTest : public testing::Test {
 protected:
  void SetUp() override {
    work.Write("deepspeed.yaml", ExperimentFile());
    work.Write("ds_config.json", kDsConfig);
    work.Write("profile.json", kProfile);
    std::string text;
    for (int i = 0; i < 200; ++i)
      text += "The quick brown fox jumps over the lazy dog. ";
    work.Write("text.txt", text);
  }

  void Create(const std::vector<std::string>& more = {}) const {
    work.Succeed(Joined({"create", "random", "deepspeed.yaml", "--profile", "profile.json"}, more));
  }

  // Asks for the trials of an experiment by throughput until there is none. They run at the speed
  // that `speed_of` says, or end as `flag` says where that is 0.
  void Drive(const std::string& experiment, const std::string& flag,
             const std::function<double(const Json&)>& speed_of) const {
    for (int i = 0; i < 40; ++i) {
      const Json asked = Json::parse(work.Dsat({"ask", experiment, "--json"}).out);
      if (asked["finished"]) return;
      const std::vector<std::string> tell = {"tell", experiment, "--trial",
                                             asked["trial"]["id"].dump()};
      const double speed = speed_of(asked["trial"]);
      speed == 0 ? work.Dsat(Joined(tell, {flag, "no room"}))
                 : work.Dsat(Joined(tell, {"--metrics", "-"}), Json{{"throughput", speed}}.dump());
    }
  }

  Workspace work;
};

TEST_F(OutputTest, OptionsThatAScriptCannotFollowAreRefused) {
  work.Write("train.py", "");
  work.Write("script.yaml",
             "entrypoint: python3 train.py {ds_config}\n"
             "hyperparameters: {deepspeed_config: ds_config.json}\n");
  for (const char* option : {"--steps", "--checkpoint-interval", "--keep", "--eval-interval"})
    work.ExpectRefused(
        {"train", "script.yaml", option, "7"},
        std::string(option) + ": " + work.Path("script.yaml") + ": /entrypoint is a command");
}

TEST_F(OutputTest, TheSettingsOfAFailedTrialAreShown) {
  Create();
  for (const char* id : {"0", "1"}) {  // The submitted configuration, and one that is searched.
    work.Succeed({"ask", "1"});
    work.Succeed({"tell", "1", "--trial", id, "--failed", "crashed"});
  }
  const std::string text = work.Dsat({"show", "1"}).out;
  EXPECT_THAT(text, HasSubstr("(submitted): crashed"));
  EXPECT_THAT(text, testing::ContainsRegex("bucket_size=[0-9e.]+.*: crashed"));
}

TEST_F(OutputTest, UsageErrorsEndWithCode2AndOneLine) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"ashes"},
           {"asha"},
           {"asha", "deepspeed.yaml", "--train-batch-size", ""},
           {"asha", "deepspeed.yaml", "--max-trials", "1"},
           {"create", "grid", "deepspeed.yaml", "--start-profile-step", "4", "--end-profile-step",
            "3"},
           {"asha", "deepspeed.yaml", "--zero-stages", "1,1"},
           {"asha", "deepspeed.yaml", "--allow", "anything"},
           {"asha", "deepspeed.yaml", "--allow", "semantic", "--compat", "determined"},
           {"tell", "1", "--trial", "0"},
           {"asha", "deepspeed.yaml", "--metric", "speed"},
           {"asha", "deepspeed.yaml", "--zero-stages", "4"},
           {"asha", "deepspeed.yaml", "--divisor", "two"},
           {"resume", "1", "--max-trials", "1"},
           {"resume", "1", "--max-time", "soon"},
           {"asha", "deepspeed.yaml", "--max-time", "2d"},
           {"asha", "deepspeed.yaml", "--max-time", "m"},
           {"asha", "deepspeed.yaml", "--max-time", "0s"},
           {"asha", "deepspeed.yaml", "--divisible-by", "0"},
           {"asha", "deepspeed.yaml", "--confirm", "-1"},
           {"asha", "deepspeed.yaml", "--warm-start", "auto"},
           {"tell", "1", "--trial", "0", "--infeasible", "oom", "--failed", "crash"}}) {
    work.ExpectRefused(args, "dsat: ", 2);
  }
  EXPECT_FALSE(std::filesystem::exists(work.Path("dsat.db")));
}

TEST_F(OutputTest, EmptyValuesAreRefusedAndTakeNoOtherArgument) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"asha", "deepspeed.yaml", "--out=", "--json"},
           {"asha", "deepspeed.yaml", "--db=", "--max-trials", "2"},
           {"asha", "--train-batch-size=", "deepspeed.yaml"},
           {"asha", "deepspeed.yaml", ""},
           {"asha", "deepspeed.yaml", "--include", ""},
           {"train", "deepspeed.yaml", "--trace", ""},
           {"check", ""},
           {"collate", "", "model.safetensors"},
           {"eval", "deepspeed.yaml", "--checkpoint="},
           {"aio-bench", ""},
           {"create", "asha", "deepspeed.yaml", "--profile", ""}}) {
    work.ExpectRefused(args, ": it is empty", 2);
  }
  EXPECT_FALSE(std::filesystem::exists(work.Path("dsat.db")));
  EXPECT_THAT(work.Dsat({"asha", "nowhere.yaml", "--slurm-args="}).err,
              HasSubstr("--slurm-args requires"));
}

TEST_F(OutputTest, BadInputIsRefusedInOneLineAndLeavesTheDatabaseAsItWas) {
  Create();
  const std::string before = ReadFile(work.Path("dsat.db"));

  work.ExpectRefused({"asha", "nowhere.yaml"}, "nowhere.yaml");
  work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 2,
      "zero_optimization": {"stage": 4}})");
  work.ExpectRefused({"asha", "deepspeed.yaml"}, "/zero_optimization/stage");
  work.Write("ds_config.json", R"({"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 2})");
  for (const char* part : {"train_batch_size", "9", "2"})
    work.ExpectRefused({"asha", "deepspeed.yaml"}, part);
  work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 2,
      "zero_optimiztion": {"stage": 1}})");
  work.ExpectRefused({"asha", "deepspeed.yaml"}, "zero_optimization");
  work.Write("ds_config.json", kDsConfig);
  work.ExpectRefused({"asha", "deepspeed.yaml", "--train-batch-size", "2147483648"},
                     "expected at most 100000 micro-batches");
  work.ExpectRefused({"asha", "deepspeed.yaml", "--train-batch-size", "9"},
                     "not a multiple of the data-parallel size 2");
  work.ExpectRefused({"asha", "deepspeed.yaml", "--train-batch-size", "9223372036854775807"},
                     "such as 9223372036854775806,");
  work.ExpectRefused(
      {"create", "asha", "deepspeed.yaml", "--train-batch-size", "8", "--divisible-by", "3"},
      "no micro-batch size is a multiple of 3");
  work.Write("deepspeed.yaml", ExperimentFile("missing.txt"));
  work.ExpectRefused({"asha", "deepspeed.yaml"}, "missing.txt");
  work.Write("deepspeed.yaml", ExperimentFile());
  work.ExpectRefused({"asha", "deepspeed.yaml", "--out", "/proc/nowhere"}, "/proc/nowhere");
  work.ExpectRefused({"asha", "deepspeed.yaml", "--slots", "5000"}, "--slots 5000: expected");
  std::filesystem::create_directory(work.Path("theirs"));
  work.Write("theirs/experiment.json", R"({"database": "other.db", "experiment": 1})");
  work.ExpectRefused({"asha", "deepspeed.yaml", "--out", "theirs"},
                     "this folder has the results of experiment 1 of \"other.db\"");
  work.ExpectRefused({"train", "deepspeed.yaml", "--ds-config", "nowhere.json"}, "nowhere.json");

  EXPECT_EQ(ReadFile(work.Path("dsat.db")), before);
}

TEST_F(OutputTest, ARefusedCreateLeavesNoDatabase) {
  work.ExpectRefused({"create", "asha", "deepspeed.yaml", "--max-slots", "1", "--db", "new.db"},
                     "--max-slots: 1 is too few");
  work.ExpectRefused({"create", "auto", "deepspeed.yaml", "--warm-start", "77", "--db", "new.db"},
                     "new.db");
  EXPECT_FALSE(std::filesystem::exists(work.Path("new.db")));
}

TEST_F(OutputTest, ASearchDoesNotReplaceItsInput) {
  work.ExpectRefused({"asha", "deepspeed.yaml", "--out", "."},
                     "/ds_config.json: no search has written this file");
  EXPECT_EQ(ReadFile(work.Path("ds_config.json")), kDsConfig);
}

TEST_F(OutputTest, ACorruptDatabaseIsRefusedAndNotTouched) {
  work.Write("dsat.db", std::string(5000, 'x'));
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"list"}, {"asha", "deepspeed.yaml"}, {"resume", "1"}, {"query", "select 1"}})
    work.ExpectRefused(args, "dsat.db");
  EXPECT_EQ(ReadFile(work.Path("dsat.db")), std::string(5000, 'x'));
}

TEST_F(OutputTest, UnknownExperimentsAndTrialsAreNamed) {
  Create();
  work.ExpectRefused({"show", "7"}, "7");
  work.ExpectRefused({"ask", "nothing"}, "nothing");
  work.ExpectRefused({"auto", "deepspeed.yaml", "--warm-start", "7"}, "no experiment 7");
  work.ExpectRefused({"auto", "deepspeed.yaml", "--warm-start", "1"},
                     "--warm-start: experiment 1 has measured no configuration");
  work.Write("metrics.json", R"({"FLOPS_per_gpu": 1e9})");
  work.ExpectRefused({"tell", "1", "--trial", "3", "--metrics", "metrics.json"}, "trial 3");
  work.ExpectRefused({"best", "1"}, "no trial");
}

TEST_F(OutputTest, AskAndTellDriveAnExperimentToItsEnd) {
  Create({"--max-trials", "12"});
  int told = 0;
  for (bool finished = false; !finished && told < 20;) {
    const Json asked = Json::parse(work.Dsat({"ask", "1", "--json"}).out);
    finished = asked["finished"];
    if (asked["trial"].is_null()) continue;
    const Json& config = asked["trial"]["ds_config"];
    const int64_t micro_batch = config["train_micro_batch_size_per_gpu"];
    const std::string trial = asked["trial"]["id"].dump();
    const Finished tell =
        micro_batch > 20
            ? work.Dsat({"tell", "1", "--trial", trial, "--infeasible", "out of memory"})
            : work.Dsat({"tell", "1", "--trial", trial, "--metrics", "-"},
                        Json{{"FLOPS_per_gpu", 1e9 * static_cast<double>(micro_batch)}}.dump());
    EXPECT_EQ(tell.exit_code, 0) << tell.err;
    ++told;
  }
  EXPECT_EQ(told, 12);
  const Json shown = Json::parse(work.Dsat({"show", "1", "--json"}).out);
  ASSERT_EQ(shown["trials"].size(), 12U);
  const Json best = Json::parse(work.Dsat({"best", "1", "--out", "best"}).out);
  EXPECT_LE(best["train_micro_batch_size_per_gpu"], 20);
  EXPECT_EQ(ReadJsonFile(work.Path("best/ds_config.json")), best);
  EXPECT_FALSE(best.contains("autotuning"));
}

TEST_F(OutputTest, TheSummaryNamesWhatDroppedOutOfTheConfirmation) {
  Create({"--metric", "throughput", "--max-trials", "4", "--confirm", "2"});
  int confirms = 0;
  Drive("1", "--infeasible", [&](const Json& trial) {
    const bool is_finalist = trial["kind"] == "confirm" && trial["confirms"] != 0;
    if (is_finalist && confirms++ == 0) return 0.0;
    const double size = trial["ds_config"]["train_micro_batch_size_per_gpu"];
    return trial["kind"] == "confirm" ? 2 * size : size;
  });
  EXPECT_GE(confirms, 1);
  const std::string shown = work.Dsat({"show", "1"}).out;
  EXPECT_THAT(shown, HasSubstr("finalists: trial "));
  EXPECT_THAT(shown, HasSubstr(" dropped out (infeasible: no room)"));
  const Json verdict = Json::parse(work.Dsat({"show", "1", "--json"}).out)["verdict"];
  EXPECT_EQ(verdict["left_out"].size(), 1U);
  // The speed is that of the confirmation.
  EXPECT_THAT(shown,
              HasSubstr(fmt::format(", {:.1f} samples/s\n", verdict["speed"].get<double>())));
}

TEST_F(OutputTest, TheSummarySaysThatTheFasterConfigurationsDroppedOut) {
  Create({"--metric", "throughput", "--max-trials", "4", "--confirm", "2"});
  Json submitted;
  Drive("1", "--infeasible", [&](const Json& trial) {
    if (trial["kind"] == "submitted") submitted = trial["ds_config"];
    const bool is_submitted = trial["ds_config"] == submitted;
    return is_submitted ? 1.0 : trial["kind"] == "confirm" ? 0.0 : 2.0;
  });
  EXPECT_THAT(
      work.Dsat({"show", "1"}).out,
      StartsWith("keep the submitted configuration: the faster configurations dropped out\n"));
}

TEST_F(OutputTest, TheSummarySaysWhyThereIsNoFactor) {
  for (const auto& [flag, words] :
       {std::pair("--infeasible", "does not fit: no room"), {"--failed", "failed: no room"}}) {
    Create({"--metric", "throughput", "--max-trials", "3", "--confirm", "0"});
    const std::string experiment = flag == std::string("--infeasible") ? "1" : "2";
    Drive(experiment, flag,
          [](const Json& trial) { return trial["kind"] == "submitted" ? 0.0 : 3.0; });
    EXPECT_THAT(work.Dsat({"show", experiment}).out,
                HasSubstr(std::string("runs; the submitted one (trial 0) ") + words));
  }
}

TEST_F(OutputTest, TheDatabaseOfTheCommandLineHasPrecedence) {
  Create();
  setenv("DSAT_DB", work.Path("other.db").c_str(), 1);
  work.Succeed({"show", "1", "--db", "dsat.db"});
  work.ExpectRefused({"show", "1"}, "other.db");
  unsetenv("DSAT_DB");
}

TEST_F(OutputTest, ATrialIsToldOnceAndWithItsMetric) {
  Create();
  work.Succeed({"ask", "1"});
  for (const auto& [metrics, what] :
       {std::pair(R"({"speed": 1})", "speed"), {R"({"throughput": 1})", "FLOPS_per_gpu"}}) {
    work.Write("metrics.json", metrics);
    work.ExpectRefused({"tell", "1", "--trial", "0", "--metrics", "metrics.json"}, what);
  }
  work.Succeed({"tell", "1", "--trial", "0", "--failed", "lost"});
  work.ExpectRefused({"tell", "1", "--trial", "0", "--failed", "lost"}, "trial 0");
}

TEST_F(OutputTest, WarningsComeOnceAndStagesThatCannotBeSearchedAreNamed) {
  work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 2, "nonsense_key": 1,
      "optimizer": {"type": "SGD", "params": {"lr": 0.001}}})");
  const Finished some = work.Succeed(
      {"create", "random", "deepspeed.yaml", "--zero-stages", "0,2", "--profile", "profile.json"});
  EXPECT_EQ(CountLines(some.err), 2) << some.err;
  EXPECT_THAT(some.err, HasSubstr("nonsense_key"));
  EXPECT_THAT(some.err, HasSubstr("stage 2 cannot be searched"));
  const Finished none = work.Fail({"asha", "deepspeed.yaml"}, "/optimizer/type is \"SGD\"");
  EXPECT_THAT(
      none.err,
      HasSubstr("none of --zero-stages 1 2 3 can be searched, the ds_config has stage 0: "));
}

TEST_F(OutputTest, ShowSaysWhyAnExperimentFailed) {
  work.Succeed({"create", "random", "deepspeed.yaml"});
  work.Succeed({"ask", "1"});
  work.Succeed({"tell", "1", "--trial", "0", "--failed", "too big\nby far"});
  const std::string shown = work.Dsat({"show", "1"}).out;
  const std::string first_line = shown.substr(0, shown.find('\n'));
  EXPECT_THAT(first_line, HasSubstr("failed: "));
  EXPECT_THAT(first_line, HasSubstr("too big\\nby far"));
  EXPECT_THAT(Json::parse(work.Dsat({"show", "1", "--json"}).out)["reason"].get<std::string>(),
              HasSubstr("too big\nby far"));
}

TEST_F(OutputTest, NamesCannotSteerTheTerminal) {
  work.Write("deepspeed.yaml",
             "name: \"a\\e[31m\\nb\"\n" + ExperimentFile().substr(ExperimentFile().find('\n') + 1));
  Create();
  for (const char* command : {"list", "show", "query"}) {
    const std::string argument =
        std::string(command) == "query" ? "select name from experiments" : "1";
    std::vector<std::string> args = {command};
    if (std::string(command) != "list") args.push_back(argument);
    const std::string out = work.Dsat(args).out;
    EXPECT_EQ(out.find('\x1b'), std::string::npos) << command;
    EXPECT_THAT(out, HasSubstr("a\\x1b[31m\\nb")) << command;
  }
}

TEST_F(OutputTest, OutputThatCannotBeWrittenIsAnError) {
  Create();
  for (const std::string command : {"list", "--help"}) {
    std::filesystem::create_symlink("/dev/full", work.Path(command + ".out"));
    EXPECT_EQ(WaitFor(work.StartDsat({command}, command)), 1);
    EXPECT_THAT(ReadFile(work.Path(command + ".err")), HasSubstr("No space left"));
  }
}

TEST_F(OutputTest, QueriesKeepEveryColumnAndRoundForPeopleOnly) {
  Create();
  const std::string sql = "select 1 as a, 2 as a, 0.1 + 0.2 as sum";
  const Json row = Json::parse(work.Dsat({"query", sql, "--json"}).out)[0];
  EXPECT_EQ(row, (Json{{"a", 1}, {"a_2", 2}, {"sum", 0.1 + 0.2}}));
  EXPECT_THAT(work.Dsat({"query", sql}).out, HasSubstr(" 0.3\n"));
}

TEST_F(OutputTest, ResultsComeAsTablesJsonAndCsv) {
  Create();
  work.Succeed({"ask", "1"});
  work.Succeed({"tell", "1", "--trial", "0", "--metrics", "-"}, "{\"FLOPS_per_gpu\": 2e9}");
  EXPECT_THAT(work.Dsat({"list"}).out, HasSubstr("2.0 GFLOP/s"));
  EXPECT_EQ(Json::parse(work.Dsat({"list", "--json"}).out)[0]["best_trial"], 0);
  EXPECT_THAT(work.Dsat({"query", "select name, method from experiments"}).out, HasSubstr("tiny"));
  EXPECT_EQ(Json::parse(work.Dsat({"query", "select 1 as one", "--json"}).out)[0]["one"], 1);
  work.ExpectRefused({"query", "delete from trials"}, "read");
  work.ExpectRefused({"query", "selekt"}, "selekt");
  EXPECT_EQ(CountLines(work.Dsat({"export", "1"}).out), 2);
  EXPECT_EQ(Json::parse(work.Dsat({"export", "1", "--format", "json"}).out).size(), 1U);
}

TEST_F(OutputTest, TheConfigOfATrialIsTheOneOfItsBestPoint) {
  Create();
  {
    Store store = Store::Open(work.Path("dsat.db"), Store::Mode::kReadWrite);
    Experiment experiment = Experiment::Open(store, 1);
    for (int i = 0; i < 3; ++i) {
      const Trial trial = experiment.Ask().value();
      std::vector<PointResult> points;
      for (const auto& [size, flops] : {std::pair(2, 1e9), std::pair(3, 3e9), std::pair(5, 2e9)}) {
        points.push_back({.point = {.micro_batch_size = size, .accumulation_steps = 1},
                          .measurement = {{"FLOPS_per_gpu", {.value = flops, .samples = 3}}}});
      }
      experiment.TellExternal(trial.id, {TrialState::kSucceeded, ""}, points, std::nullopt);
    }
  }
  const Json shown = Json::parse(work.Dsat({"show", "1", "--json"}).out)["trials"];
  const Json exported = Json::parse(work.Dsat({"export", "1", "--format", "json"}).out);
  ASSERT_EQ(shown.size(), 3U);
  for (size_t i = 0; i < shown.size(); ++i) {
    const Json& config = shown[i]["ds_config"];
    EXPECT_EQ(config["train_micro_batch_size_per_gpu"], 3) << shown[i];
    EXPECT_EQ(config["train_batch_size"], 6) << shown[i];
    EXPECT_EQ(shown[i]["assignment"].value("/train_micro_batch_size_per_gpu", 3), 3);
    EXPECT_EQ(exported[i]["ds_config"], config);
  }
  const Json best = Json::parse(work.Dsat({"best", "1", "--json"}).out);
  EXPECT_EQ(best["ds_config"], Json::parse(work.Dsat({"best", "1"}).out));
  EXPECT_EQ(best["ds_config"]["train_micro_batch_size_per_gpu"], 3);
}

}  // namespace
}  // namespace dsat
