// Runs dsat space from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class SpaceTest : public testing::Test {
 protected:
  SpaceTest() {
    work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 1,
                                     "optimizer": {"type": "AdamW"},
                                     "zero_optimization": {"stage": 1}})");
    work.Write("profile.json", R"({"num_params": 100000000, "trainable_num_params": 100000000,
                                   "activation_bytes_per_sample": 100000000,
                                   "device_memory_bytes": 8000000000})");
  }

  void WriteBuiltin(const std::string& more, int ranks = 2) const {
    work.Write("deepspeed.yaml",
               "entrypoint: builtin\n"
               "resources: {slots_per_trial: " +
                   std::to_string(ranks) +
                   ", device_memory: 4MiB}\n"
                   "hyperparameters:\n"
                   "  deepspeed_config: ds_config.json\n"
                   "  model: {type: mlp, hidden: [64]}\n"
                   "  data: {type: synthetic, seq_len: 8}\n" +
                   more);
  }
  void WriteScript(const std::string& more) const {
    work.Write("train.py", "");
    work.Write("deepspeed.yaml",
               "entrypoint: python3 train.py --deepspeed_config ds_config.json\n"
               "resources: {slots_per_trial: 2}\n"
               "hyperparameters: {deepspeed_config: ds_config.json}\n" +
                   more);
  }
  Json SpaceJson(const std::vector<std::string>& args) const {
    return work.DsatJson(Joined({"space", "deepspeed.yaml", "--json"}, args));
  }

  // More than a million combinations at every stage.
  std::string Huge() const {
    std::string text = "search_space:\n";
    for (const char* key : {"reduce_bucket_size", "allgather_bucket_size"})
      text += std::string("  /zero_optimization/") + key + ": {min: 1000, max: 32000}\n";
    for (const char* name : {"A", "B", "C", "D", "E"})
      text += std::string("  environment.DSATTEST_") + name + ": [1, 2, 3, 4, 5, 6, 7, 8]\n";
    return text;
  }

  Workspace work;
};

TEST_F(SpaceTest, ASearchOfASpaceThatDoesNotFitSaysSo) {
  WriteBuiltin("search_space:\n  /train_micro_batch_size_per_gpu: {min: 100000, max: 100100}\n");
  EXPECT_THAT(work.Dsat({"space", "deepspeed.yaml"}).out,
              HasSubstr("No configuration of the space is predicted to fit.\n"));
  const Finished run = work.Succeed(
      {"auto", "deepspeed.yaml", "--max-trials", "4", "--confirm", "1", "--out", "out"});
  EXPECT_THAT(run.out, HasSubstr("nothing was compared: no other configuration of the space is "));
  EXPECT_THAT(run.out, Not(HasSubstr("is expected to be more than")));
}

TEST_F(SpaceTest, ACommandTakesThePlaceOfTheExperimentFile) {
  work.Write("train.py", "");
  const std::vector<std::string> command = {"--", "python3", "train.py", "--deepspeed",
                                            "ds_config.json"};
  EXPECT_THAT(work.Succeed(Joined({"space", "--profile", "profile.json"}, command)).out,
              HasSubstr("stage 1"));
  const std::vector<std::string> init = Joined({"init"}, command);
  EXPECT_THAT(work.Dsat(init).out, HasSubstr("next: dsat auto deepspeed.yaml"));
  EXPECT_EQ(ReadOrEmpty(work.Path("deepspeed.yaml")),
            "# yaml-language-server: $schema=dsat-out/experiment.schema.json\n" +
                ReadOrEmpty(work.Path("dsat-out/commands/train.yaml")));
  const Json schema = ReadJsonFile(work.Path("dsat-out/experiment.schema.json"));
  EXPECT_TRUE(schema["properties"]["resources"]["properties"].contains("slots_per_trial"));
  EXPECT_EQ(Json::parse(work.Dsat({"init", "--schema"}).out), schema);
  EXPECT_THAT(work.Dsat(init).err, HasSubstr("deepspeed.yaml: exists already"));
  EXPECT_THAT(work.Dsat({"init"}).err, HasSubstr("expected one behind --"));
  EXPECT_THAT(work.Dsat({"auto"}).err, HasSubstr("expected an experiment file or, behind --"));
}

TEST_F(SpaceTest, ADeviceNeedNotBeHere) {
  WriteBuiltin("", 8);
  work.Write("card.json", R"({"like": "a100", "device_memory": "24GiB", "flops": 1e12})");
  const Json fast = SpaceJson({"--device", "h100"}), slow = SpaceJson({"--device", "card.json"});
  EXPECT_TRUE(fast["best"][0]["exact"]);
  EXPECT_LT(fast["best"][0]["step_ms"], slow["best"][0]["step_ms"]);
  EXPECT_EQ(slow["profile"]["device_memory_bytes"], 4 << 20);  // As the experiment file says.
  EXPECT_EQ(slow["profile"]["matmul_flops_per_s"], 1'000'000'000'000);
  const auto refusal = [&](const char* device) {
    return work.Dsat({"space", "deepspeed.yaml", "--device", device}).err;
  };
  EXPECT_THAT(refusal("h10"), HasSubstr("\"h10\"; expected one of v100, a100, h100, h200, b200"));
  work.Write("card.json", R"({"like": "a110"})");
  EXPECT_THAT(refusal("card.json"), HasSubstr("like is \"a110\"; did you mean \"a100\"?"));
  work.Write("card.json", R"({"device_memory": 24})");
  EXPECT_THAT(refusal("card.json"), HasSubstr("expected a text such as \"24GiB\""));
  work.Write("card.json", R"({"memroy": "1TB/s"})");
  EXPECT_THAT(refusal("card.json"), HasSubstr("memroy: unknown key; did you mean \"memory\"?"));
}

TEST_F(SpaceTest, AWideSpaceHasStagesThatRefuseTheSubmittedOffload) {
  work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 1,
                                   "optimizer": {"type": "AdamW"},
                                   "zero_optimization": {"stage": 3,
                                     "offload_optimizer": {"device": "cpu"},
                                     "offload_param": {"device": "cpu"}}})");
  WriteScript("");
  const std::vector<std::string> args = {"space",        "deepspeed.yaml", "--profile",
                                         "profile.json", "--zero-stages",  "2"};
  const Finished wide = work.Succeed(args);
  EXPECT_THAT(wide.out, HasSubstr("stage 2"));
  EXPECT_THAT(wide.err, Not(HasSubstr("cannot be searched")));
  EXPECT_THAT(work.Dsat(Joined(args, {"--space", "published"})).err,
              HasSubstr("none of --zero-stages 2 can be searched, the ds_config has stage 3: "));
}

TEST_F(SpaceTest, AStageThatFitsWithOtherKeysIsNotSaidNotToFit) {
  WriteScript("");
  work.Write("profile.json", R"({"num_params": 1000000, "trainable_num_params": 1000000,
                                 "activation_bytes_per_sample": 1000000,
                                 "device_memory_bytes": 1000000000})");
  const Finished run =
      work.Dsat({"space", "deepspeed.yaml", "--profile", "profile.json", "--zero-stages", "2"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("predicted not to fit with the submitted keys, also with "),
                             HasSubstr(" reduce_bucket_size=1e6 ")));
}

TEST_F(SpaceTest, ShowsKeysSizesWhatIsLeftOutAndTheBestAndLeavesNothing) {
  WriteBuiltin(
      "where:\n  - /zero_optimization/overlap_comm == false\n"
      "search_space:\n  /zero_optimization/offload_optimizer/device: [none]\n");
  const Finished run = work.Succeed({"space", "deepspeed.yaml", "--zero-stages", "1,2"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("model: "), HasSubstr("combinations of keys"),
                             HasSubstr("/zero_optimization/reduce_bucket_size  "),
                             HasSubstr("true, false"), HasSubstr("configurations: "),
                             HasSubstr("where: /zero_optimization/overlap_comm == false\n"),
                             HasSubstr("left out: /zero_optimization/overlap_comm at stage 1; "),
                             HasSubstr(" at stage 1: it is searched from stage 2 on\n"),
                             HasSubstr("left out: /zero_optimization/allgather_partitions: "),
                             HasSubstr("offload_optimizer/device: search_space has one value\n"),
                             HasSubstr("best configurations as predicted, not measured\n"),
                             HasSubstr("samples/s"), Not(HasSubstr("overlap_comm=true"))));
  EXPECT_FALSE(std::filesystem::exists(work.Path("dsat-out")));
  EXPECT_FALSE(std::filesystem::exists(work.Path("dsat.db")));
}

TEST_F(SpaceTest, OnOneRankKeysOfCommunicationAreLeftOut) {
  WriteBuiltin("", 1);
  const Json said = SpaceJson({"--zero-stages", "0", "--out", "logs"});
  EXPECT_TRUE(std::filesystem::exists(work.Path("logs/trials")));
  EXPECT_THAT(said["space"]["stages"][0]["knobs"], IsEmpty());
  bool is_named = false;
  for (const Json& left_out : said["left_out"])
    is_named = is_named || (left_out["what"] == "/zero_optimization/reduce_bucket_size" &&
                            left_out["why"] == "it has no effect on one rank");
  EXPECT_TRUE(is_named) << said["left_out"];
}

TEST_F(SpaceTest, TheBestFitAreSortedAndAllowed) {
  WriteBuiltin(
      "where:\n"
      "  - /zero_optimization/reduce_bucket_size == /zero_optimization/allgather_bucket_size\n"
      "search_space:\n"
      "  /zero_optimization/reduce_bucket_size: [1000, 2000, 4000]\n"
      "  /zero_optimization/allgather_bucket_size: [2000, 4000, 8000]\n"
      "  /train_micro_batch_size_per_gpu: [2, 4]\n");
  const Json said = SpaceJson({"--zero-stages", "1", "--space", "published"});
  EXPECT_EQ(said["num_configs"], 4);  // 2 pairs, 2 sizes.
  EXPECT_EQ(said["space"]["stages"][0]["micro_batch_sizes"], Json({2, 4}));
  ASSERT_EQ(said["best"].size(), 4U);
  double last = 0;
  for (const Json& best : said["best"]) {
    EXPECT_TRUE(best["exact"]);
    EXPECT_LE(best["peak_bytes"], 4 << 20);
    const Json& assignment = best["assignment"];
    EXPECT_EQ(assignment["/zero_optimization/reduce_bucket_size"],
              assignment["/zero_optimization/allgather_bucket_size"]);
    const double cost =
        best["step_ms"].get<double>() / best["ds_config"]["train_batch_size"].get<double>();
    EXPECT_GE(cost, last);
    last = cost;
  }
}

TEST_F(SpaceTest, AProfileInAFileNeedsNoTrial) {
  WriteScript(
      "search_space:\n  /zero_optimization/brand_new_key: [low, high]\n"
      "  environment.A_B: [1, 2]\n");
  const Finished run =
      work.Succeed({"space", "deepspeed.yaml", "--profile", "profile.json", "--method", "grid",
                    "--zero-stages", "1", "--train-batch-size", "48"});
  EXPECT_THAT(run.err, HasSubstr("/zero_optimization/brand_new_key is not in dsat's table"));
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("\"low\", \"high\""), HasSubstr("memory is computed by formulas"),
                    HasSubstr("\nenvironment.A_B "), HasSubstr("1 2 3 4 6 8 12 24"),
                    HasSubstr("a step has 24 samples on a data-parallel rank"),
                    HasSubstr("by the models of auto; grid does not use them"),
                    HasSubstr("brand_new_key=\"low\"")));
}

TEST_F(SpaceTest, ListsOfTheDsConfigAreTheSpace) {
  work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": [1, 2],
                                   "zero_optimization": {"reduce_bucket_size": [5e7, 5e8]}})");
  WriteScript("");
  const std::vector<std::string> args = {"--profile", "profile.json", "--zero-stages", "2"};
  const Json stage = SpaceJson(args)["space"]["stages"][0];
  EXPECT_EQ(stage["micro_batch_sizes"], Json({1, 2}));
  EXPECT_EQ(stage["knobs"][0]["values"], Json({5e7, 5e8}));
  WriteScript("search_space: {/zero_optimization/reduce_bucket_size: [1]}\n");
  work.Fail({"space", "deepspeed.yaml"},
            "deepspeed.yaml:4: /search_space has "
            "/zero_optimization/reduce_bucket_size, of which ");
}

TEST_F(SpaceTest, MoreThanAMillionConfigurationsAreCountedAndSearched) {
  WriteBuiltin(Huge());
  const Json said = SpaceJson({"--zero-stages", "1", "2"});
  EXPECT_GT(said["num_configs"], 2e6);
  EXPECT_LE(said["num_candidates"], 200'000);
  EXPECT_EQ(said["best"].size(), 1U);  // Nothing that is predicted depends on these variables.
  const Json result = work.DsatJson({"auto", "deepspeed.yaml", "--zero-stages", "1", "2",
                                     "--max-trials", "3", "--confirm", "0", "--json"});
  EXPECT_EQ(result["trials"].size(), 3U);
  for (const Json& trial : result["trials"])
    EXPECT_EQ(trial["state"], "succeeded") << trial;
}

TEST_F(SpaceTest, ConditionsThatLeaveNothingAreRefused) {
  // One size of each bucket holds all parameters, so that both have this one.
  const std::string condition =
      "/zero_optimization/reduce_bucket_size < /zero_optimization/allgather_bucket_size";
  WriteBuiltin("where:\n  - " + condition + "\n");
  for (const char* command : {"space", "auto"}) {
    const Finished run =
        work.Dsat({command, "deepspeed.yaml", "--zero-stages", "1", "--space", "published"});
    EXPECT_EQ(run.exit_code, 1) << run.out;
    EXPECT_THAT(run.err, AllOf(HasSubstr("no configuration of the space meets"),
                               HasSubstr("\"" + condition + "\"")));
  }
  // This is seen before anything runs.
  WriteBuiltin("where:\n  - /zero_optimization/overlap_comm == true\n");
  const Finished early = work.Fail({"auto", "deepspeed.yaml", "--zero-stages", "1"},
                                   "\"/zero_optimization/overlap_comm == true\"");
  EXPECT_THAT(early.err, Not(HasSubstr("trial")));
}

TEST_F(SpaceTest, PlacesThatAConditionExcludesAreLeftOut) {
  WriteBuiltin("where:\n  - /zero_optimization/overlap_comm == true\n");
  EXPECT_THAT(
      work.Succeed({"space", "deepspeed.yaml"}).out,
      HasSubstr("left out: stage 0; stage 1: the condition \"/zero_optimization/overlap_comm == "
                "true\" of where excludes it\n"));
}

TEST_F(SpaceTest, SemanticKeysAreSearchedIfTheyAreAllowed) {
  WriteScript("");
  const std::vector<std::string> args = {"space",        "deepspeed.yaml", "--profile",
                                         "profile.json", "--zero-stages",  "3"};
  EXPECT_THAT(work.Succeed(args).out,
              HasSubstr("left out: /communication_data_type; "
                        "/zero_optimization/zero_quantized_weights; "
                        "/zero_optimization/zero_quantized_gradients: it changes what is learned; "
                        "--allow semantic searches it\n"));
  EXPECT_THAT(work.Succeed(Joined(args, {"--allow", "semantic"})).out,
              AllOf(HasSubstr("/communication_data_type  "), HasSubstr("null, \"bf16\""),
                    Not(HasSubstr("--allow semantic"))));
}

TEST_F(SpaceTest, AnErrorSaysWhereTheLogsAre) {
  WriteScript("");
  work.Write("train.py", "raise SystemExit('no model today')\n");
  const Finished run = work.Dsat({"space", "deepspeed.yaml"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("space: the profiling trial"), HasSubstr("its logs are in")));
  EXPECT_EQ(run.out, "");
  const size_t at = run.err.rfind("its logs are in ");
  std::string folder = run.err.substr(at + 16);
  folder.pop_back();  // The newline.
  EXPECT_TRUE(std::filesystem::remove_all(folder) > 0) << folder;
}

TEST(DemoTest, TheFilesOfTheExampleDescribeASearch) {
  const Workspace work;
  std::filesystem::create_directory(work.Path("tried"));
  work.Write("tried/ds_config.json", "{\"optimizer\": 1}");  // A user's own stays.
  work.Fail({"demo", "tried"}, "tried/ds_config.json: /optimizer");
  std::filesystem::remove(work.Path("tried/ds_config.json"));
  work.Write("profile.json", R"({"num_params": 3000000, "trainable_num_params": 3000000,
                                 "activation_bytes_per_sample": 4000000,
                                 "device_memory_bytes": 134217728})");
  EXPECT_EQ(work.Dsat({"demo", "tried", "--db", "missing/dsat.db"}).exit_code, 1);
  EXPECT_FALSE(work.DsatJson({"space", "tried/deepspeed.yaml", "--profile", "profile.json",
                              "--json"})["best"]
                   .empty());
}

}  // namespace
}  // namespace dsat
