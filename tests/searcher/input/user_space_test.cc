// Tests the section search_space of an experiment file.
#include "searcher/input/user_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "searcher/command/deepspeed_command.h"
#include "tests/base/error_code.h"

namespace dsat {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kBucket[] = "/zero_optimization/reduce_bucket_size";
constexpr char kSizes[] = "/train_micro_batch_size_per_gpu";

class UserSpaceTest : public testing::Test {
 protected:
  Json Read(const Json& section, bool builtin = true) {
    const ExperimentDocument document{
        .path = "a.yaml", .root = {{"search_space", section}}, .lines = {{"/search_space", 7}}};
    warnings_.clear();
    ExperimentSpec spec;
    spec.entrypoint = {"builtin"};
    if (!builtin) spec.entrypoint = entrypoint_;
    return ReadUserSpace(document, section, spec, &warnings_);
  }

  std::string ErrorOf(const Json& section, bool builtin = true) {
    return RefusalOf([&] { Read(section, builtin); });
  }

  std::vector<std::string> entrypoint_ = {"python3", "train.py"};
  std::vector<std::string> warnings_;
};

TEST_F(UserSpaceTest, ListsAreTakenAsTheyAre) {
  const Json space = Read({{kBucket, {2e8, 5e7}}, {"/zero_optimization/overlap_comm", {true}}});
  EXPECT_EQ(space, (Json{{kBucket, {2e8, 5e7}}, {"/zero_optimization/overlap_comm", {true}}}));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(UserSpaceTest, RangesOfMicroBatchesAreMultiplesAndOthersAreDoublings) {
  EXPECT_EQ(Read({{kSizes, {{"min", 5}, {"max", 16}, {"divisible_by", 4}}}})[kSizes],
            (Json{8, 12, 16}));
  EXPECT_EQ(Read({{kSizes, {{"min", 2}, {"max", 4}}}})[kSizes], (Json{2, 3, 4}));
  EXPECT_EQ(Read({{kSizes, {8, 2}}})[kSizes], (Json{2, 8}));
  EXPECT_EQ(Read({{kBucket, {{"min", 100}, {"max", 500}}}})[kBucket], (Json{100, 200, 400, 500}));
  EXPECT_EQ(Read({{kBucket, {{"min", 3}, {"max", 3}}}})[kBucket], (Json{3}));
}

TEST_F(UserSpaceTest, ErrorsNameTheLineTheKeyAndTheWayOut) {
  EXPECT_EQ(
      ErrorOf({{"/zero_optimization/reduce_bucket_sise", {1}}}),
      "a.yaml:7: search_space: /zero_optimization/reduce_bucket_sise is unknown; did you mean "
      "/zero_optimization/reduce_bucket_size?");
  EXPECT_THAT(ErrorOf({{"/optimizer/params/lr", {0.1}}}),
              HasSubstr("changes what the model learns"));
  EXPECT_THAT(ErrorOf({{"/fp16/loss_scale", {1}}}), HasSubstr("changes what the model learns"));
  EXPECT_THAT(ErrorOf({{"/train_batch_size", {8}}}), HasSubstr("--train-batch-size"));
  EXPECT_THAT(ErrorOf({{"/gradient_accumulation_steps", {8}}}), HasSubstr("--train-batch-size"));
  EXPECT_THAT(ErrorOf({{"/zero_optimization/stage", {1}}}), HasSubstr("--zero-stages"));
  EXPECT_THAT(ErrorOf({{"/zero_optimization", {1}}}), HasSubstr("is a section"));
  EXPECT_THAT(ErrorOf({{"/zero_optimization/max_live_parameters", {1}}}),
              HasSubstr("expected /zero_optimization/stage3_max_live_parameters"));
  EXPECT_THAT(ErrorOf({{"reduce_bucket_size", {1}}}), HasSubstr("is no ds_config key"));
  EXPECT_THAT(ErrorOf({{kBucket, {true}}}), HasSubstr("has true; expected"));
  EXPECT_THAT(ErrorOf({{kBucket, {5, 5}}}), HasSubstr("has 5 twice"));
  EXPECT_THAT(ErrorOf({{kBucket, Json::array()}}), HasSubstr("expected a list of values"));
  EXPECT_THAT(ErrorOf({{kBucket, 5}}), HasSubstr("expected a list of values"));
  EXPECT_THAT(ErrorOf(Json::object()), HasSubstr("expected ds_config keys with their values"));
}

TEST_F(UserSpaceTest, WrongRangesAreRefused) {
  EXPECT_THAT(ErrorOf({{kBucket, {{"min", 5}}}}), HasSubstr("a whole number >= 1 for max"));
  EXPECT_THAT(ErrorOf({{kBucket, {{"min", 0}, {"max", 4}}}}), HasSubstr("for min"));
  EXPECT_THAT(ErrorOf({{kBucket, {{"min", 5}, {"max", 4}}}}), HasSubstr("expected min <= max"));
  EXPECT_THAT(ErrorOf({{kBucket, {{"min", 1}, {"max", 4}, {"divisible_by", 2}}}}),
              HasSubstr("has divisible_by; expected min, max, which are searched in doublings"));
  EXPECT_THAT(ErrorOf({{kSizes, {{"min", 5}, {"max", 6}, {"divisible_by", 4}}}}),
              HasSubstr("has no multiple of 4 from 5 to 6"));
  EXPECT_THAT(ErrorOf({{kSizes, {{"min", 1}, {"max", 1'000'000'000}}}}),
              HasSubstr("expected a larger divisible_by"));
  EXPECT_THAT(ErrorOf({{"/zero_optimization/overlap_comm", {{"min", 1}, {"max", 2}}}}),
              HasSubstr("is a range; expected a list of values"));
}

TEST_F(UserSpaceTest, ALongSpaceIsRefused) {
  Json values, keys;
  for (int i = 0; i < 1001; ++i)
    values.push_back(i);
  EXPECT_THAT(ErrorOf({{kBucket, values}}), HasSubstr("has 1001 values; expected at most 1000"));
  for (int i = 0; i < 101; ++i)
    keys[fmt::format("/own/{}", i)] = {1};
  EXPECT_THAT(ErrorOf(keys, /*builtin=*/false), HasSubstr("has 101 keys; expected at most 100"));
}

TEST_F(UserSpaceTest, TheLargestNumbersAreMultiplesToo) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();  // 7 * 7 * 73 * ...
  EXPECT_EQ(Read({{kSizes, {{"min", kMost - 8}, {"max", kMost}, {"divisible_by", 7}}}})[kSizes],
            (Json{kMost - 7, kMost}));
  EXPECT_EQ(Read({{kSizes, {{"min", 1}, {"max", kMost}, {"divisible_by", kMost}}}})[kSizes],
            (Json{kMost}));
}

TEST_F(UserSpaceTest, ScriptsMaySearchWhatTheBuiltinEngineCannot) {
  const std::string key = "/zero_optimization/round_robin_gradients";
  EXPECT_THAT(ErrorOf({{key, {true, false}}}), HasSubstr("has no effect in the builtin engine"));
  EXPECT_EQ(ErrorOf({{key, {true, false}}}, /*builtin=*/false), "");
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(ErrorOf({{"/compression_training/own_key", {1, 2}}}, /*builtin=*/false), "");
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("is not in dsat's table of keys")));
  for (const char* pointer : {"/zero_optimization/brand_new_and_unheard_of", "/brand_new/one"}) {
    EXPECT_EQ(ErrorOf({{pointer, {1}}}, /*builtin=*/false), "");
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("is not in dsat's table of keys")));
    EXPECT_THAT(ErrorOf({{pointer, {1}}}), HasSubstr("is unknown; docs/ds_config.md lists"));
  }
  EXPECT_THAT(ErrorOf({{"/gradient_clipping/of_what", {1}}}, /*builtin=*/false),
              HasSubstr("changes what the model learns"));
  EXPECT_THAT(ErrorOf({{"/zero_allow_untested_optimizer/of_what", {1}}}, /*builtin=*/false),
              HasSubstr("is a part of /zero_allow_untested_optimizer, which is no section"));
}

TEST_F(UserSpaceTest, WhatDsatSetsInTrialsIsRefused) {
  Json config;
  for (const char* key : {"tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler"})
    config[key]["enabled"] = true;
  for (const char* key : {"wall_clock_breakdown", "memory_breakdown"})
    config[key] = true;
  config["autotuning"]["enabled"] = true;
  const Json in_trial = ConfigForTrial(config);
  EXPECT_EQ(in_trial.size(), config.size() - 1);
  for (const auto& [key, value] : config.items()) {
    EXPECT_NE(in_trial.value(key, Json()), value) << key;
    EXPECT_THAT(ErrorOf({{"/" + key, {1}}}, /*builtin=*/false), HasSubstr("is set by dsat itself"))
        << key;
  }
  for (const char* pointer : {"/wall_clock_breakdown", "/tensorboard/enabled"})
    EXPECT_THAT(ErrorOf({{pointer, {1}}}, /*builtin=*/false), HasSubstr("is set by dsat itself"));
  for (const char* flag : {"--deepspeed_config", "--ds_config"}) {
    EXPECT_THAT(ErrorOf({{fmt::format("arguments.{}", flag), {"a.json"}}}, /*builtin=*/false),
                HasSubstr("names the config of each trial"));
  }
  for (const char* name : {"RANK", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"}) {
    EXPECT_THAT(ErrorOf({{fmt::format("environment.{}", name), {1}}}),
                HasSubstr("is a variable that dsat sets itself"));
  }
}

TEST_F(UserSpaceTest, WhatTheCommandSaysIsTheSubmittedValue) {
  ExperimentSpec spec;
  spec.entrypoint = {"python3", "train.py", "--nw", "1",    "--nw", "2",         "--rate=0.5",
                     "--fast",  "--name",   "a",    "--lr", "1e5",  "--version", "1.10"};
  spec.environment = {{"OMP_NUM_THREADS", "1"}, {"HOME", "/h"}};
  spec.search_space = {{"/dsat/arguments/--nw", {2, 4}},
                       {"/dsat/arguments/--rate", {0.25, 1.0}},
                       {"/dsat/arguments/--fast", {true, false}},
                       {"/dsat/arguments/--slow", {true, false}},
                       {"/dsat/arguments/--name", {"b", "a"}},
                       {"/dsat/arguments/--new", {1, 2}},
                       {"/dsat/arguments/--lr", {1, 2}},
                       {"/dsat/arguments/--version", {"1.2", "1.3"}},
                       {"/dsat/environment/OMP_NUM_THREADS", {"1", "2"}},
                       {"/dsat/environment/OTHER", {1}},
                       {kBucket, {1000}}};
  AddSubmittedValues(spec);
  EXPECT_EQ(spec.ds_config, (Json{{"dsat",
                                   {{"arguments",
                                     {{"--nw", 2},
                                      {"--rate", 0.5},
                                      {"--fast", true},
                                      {"--slow", false},
                                      {"--name", "a"},
                                      {"--version", "1.10"}}},
                                    {"environment", {{"OMP_NUM_THREADS", "1"}}}}}}));
}

TEST_F(UserSpaceTest, KeysThatChangeTheBatchOrTheLearningAreRefusedOrNamed) {
  for (const char* pointer :
       {"/pipeline/stages", "/sequence_parallel_size", "/tensor_parallel/autotp_size"})
    EXPECT_THAT(ErrorOf({{pointer, {1, 2}}}, /*builtin=*/false), HasSubstr("the global batch"));
  for (const char* pointer : {"/bf16/enabled", "/seed", "/gradient_allreduce_op"})
    EXPECT_THAT(ErrorOf({{pointer, {1}}}, /*builtin=*/false),
                HasSubstr("changes what the model learns"));
  EXPECT_EQ(ErrorOf({{"/communication_data_type", {"fp32", "bf16"}}}, /*builtin=*/false), "");
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("changes what is learned")));
}

TEST_F(UserSpaceTest, ErrorsNameTheLineOfTheEntry) {
  const ExperimentDocument document{
      .path = "a.yaml",
      .root = {},
      .lines = {{"/search_space", 7}, {fmt::format("/search_space/{}", kBucket), 9}}};
  ExperimentSpec spec;
  spec.entrypoint = {"builtin"};
  EXPECT_THAT(RefusalOf([&] {
                ReadUserSpace(document, {{kBucket, {true}}}, spec, &warnings_);
              }),
              HasSubstr("a.yaml:9: search_space: "));
}

TEST_F(UserSpaceTest, ListsOfADsConfigBecomeASpaceAndTheirFirstValuesStay) {
  Json config = {{"train_micro_batch_size_per_gpu", {4, 8}},
                 {"optimizer", {{"params", {{"betas", {0.9, 0.99}}}}}},
                 {"amp", {{"own", {1, 2}}}},
                 {"zero_optimization",
                  {{"stage", 1}, {"reduce_bucket_size", {5e7, 5e8}}, {"overlap_comm", {true}}}}};
  EXPECT_EQ(
      TakeLists("ds.json", config),
      (Json{{kSizes, {4, 8}}, {kBucket, {5e7, 5e8}}, {"/zero_optimization/overlap_comm", {true}}}));
  EXPECT_EQ(config, (Json{{"train_micro_batch_size_per_gpu", 4},
                          {"optimizer", {{"params", {{"betas", {0.9, 0.99}}}}}},
                          {"amp", {{"own", {1, 2}}}},
                          {"zero_optimization",
                           {{"stage", 1}, {"reduce_bucket_size", 5e7}, {"overlap_comm", true}}}}));
  config["zero_optimization"]["stage"] = {1, 2};
  EXPECT_THAT(RefusalOf([&] { TakeLists("ds.json", config); }),
              HasSubstr("ds.json: /zero_optimization/stage is [1,2]; expected the stage to start "
                        "from, and --zero-stages"));
}

TEST_F(UserSpaceTest, ArgumentsAndVariablesHaveTheirPlaceInTheConfig) {
  EXPECT_EQ(Read({{"arguments.--num-workers", {2, 4}}, {"environment.OMP_NUM_THREADS", {1}}},
                 /*builtin=*/false),
            (Json{{"/dsat/arguments/--num-workers", {2, 4}},
                  {"/dsat/environment/OMP_NUM_THREADS", {1}}}));
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(ErrorOf({{"environment.OMP_NUM_THREADS", {1, 2}}}), "");
  EXPECT_THAT(ErrorOf({{"environment.RANK", {1}}}), HasSubstr("that dsat sets itself"));
  EXPECT_THAT(ErrorOf({{"environment.A-B", {1}}}), HasSubstr("names no environment variable"));
  EXPECT_THAT(ErrorOf({{"arguments.--x", {1}}}), HasSubstr("the builtin engine takes none"));
  EXPECT_THAT(ErrorOf({{"environment.A", {1, nullptr}}}), HasSubstr("has null; expected numbers"));
  for (const char* flag : {"--", "-", "--steps=", "--a b"}) {
    EXPECT_THAT(ErrorOf({{std::string("arguments.") + flag, {1}}}, false),
                HasSubstr("names no flag"))
        << flag;
  }
  EXPECT_THAT(ErrorOf({{"arguments.--per-device-train-batch-size", {1}}}, false),
              HasSubstr("follows the micro-batch size"));
  EXPECT_EQ(ErrorOf({{"arguments.--num-nodes", {1}}}, false), "");
  entrypoint_ = {"torchrun", "--nproc_per_node", "2", "train.py"};
  EXPECT_THAT(ErrorOf({{"arguments.--nproc-per-node", {1}}}, false),
              HasSubstr("says where ranks run"));
  entrypoint_ = {"python3", "train.py"};
  EXPECT_THAT(ErrorOf({{"arguments.x", {1}}}, false),
              HasSubstr("expected one, such as arguments.--num"));
  EXPECT_THAT(ErrorOf({{"arguments.--per_device_train_batch_size", {1}}}, false),
              HasSubstr("expected /train_micro_batch_size_per_gpu"));
  EXPECT_THAT(ErrorOf({{"arguments.--x", Json::array({Json::array({1})})}}, false),
              HasSubstr("expected numbers, texts, true or false"));
  entrypoint_ = {"sh", "-c", "python3 train.py --y 3 | tee log"};
  EXPECT_THAT(ErrorOf({{"arguments.--x", {1}}}, false), HasSubstr("which runs in a shell"));
  EXPECT_EQ(ErrorOf({{"arguments.--y", {1}}}, false), "");
}

}  // namespace
}  // namespace dsat
