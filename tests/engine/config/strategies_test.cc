// Strategies by name.
#include "engine/config/strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "engine/config/ds_config.h"
#include "tests/base/error_code.h"

namespace dsat::engine {
namespace {

DsConfig Parsed(const char* name) {
  return ParseDsConfig(ReadDsConfig(name), name, 2, nullptr);
}

TEST(StrategiesTest, EveryNameIsAValidConfigForTheBuiltinEngine) {
  for (const Strategy& strategy : Strategies()) {
    const DsConfig config = Parsed(strategy.name);
    EXPECT_EQ(config.zero.stage, strategy.stage) << strategy.name;
    EXPECT_TRUE(config.bf16) << strategy.name;
    EXPECT_EQ(config.zero.reduce_bucket_size, 200'000'000) << strategy.name;
    EXPECT_EQ(config.batch.micro_batch_size, 1) << strategy.name;
  }
}

TEST(StrategiesTest, NamesSayStageAndOffload) {
  EXPECT_EQ(Parsed("stage_1").zero.stage, 1);
  EXPECT_EQ(Parsed("stage_2").zero.offload_optimizer.tier, Tier::kDevice);
  EXPECT_EQ(Parsed("stage_2_offload").zero.offload_optimizer.tier, Tier::kHost);
  EXPECT_EQ(Parsed("stage_3").zero.offload_param.tier, Tier::kDevice);
  EXPECT_EQ(Parsed("stage_3_offload").zero.offload_optimizer.tier, Tier::kHost);
  EXPECT_EQ(Parsed("stage_3_offload").zero.offload_param.tier, Tier::kHost);
  EXPECT_EQ(Parsed("stage_3_nvme").zero.offload_optimizer.tier, Tier::kNvme);
  EXPECT_EQ(Parsed("stage_3_nvme").zero.offload_param.nvme_path, "/local_nvme");
}

TEST(StrategiesTest, LightningsSpellingIsTheSame) {
  EXPECT_EQ(ReadDsConfig("deepspeed_stage_2_offload"), ReadDsConfig("stage_2_offload"));
}

TEST(StrategiesTest, UnknownNamesAreRefusedWithTheList) {
  EXPECT_EQ(FindStrategy("stage_4"), nullptr);
  const std::string too_long_for_a_file(5000, 'x');
  for (const std::string& name : {std::string("stage_2_nvme"), too_long_for_a_file}) {
    const Error error = ErrorOf([&] { ReadDsConfig(name); });
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("stage_0, stage_1, stage_2, stage_2_offload, "
                                   "stage_3, stage_3_offload_optimizer, stage_3_offload, "
                                   "stage_3_nvme"));
  }
}

TEST(StrategiesTest, AFileThatHoldsNoObjectIsRefused) {
  const std::string path = testing::TempDir() + "config_that_is_a_text.json";
  std::ofstream(path) << "\"stage_2\"";
  const Error error = ErrorOf([&] { ReadDsConfig(path); });
  EXPECT_EQ(error.what(), path + ": the config is a string; expected an object");
}

TEST(StrategiesTest, AConfigKeepsWhatAStrategyDoesNotSay) {
  const Json config = {{"fp16", {{"enabled", true}}},
                       {"zero_optimization",
                        {{"stage", 3},
                         {"sub_group_size", 1000},
                         {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", "/x"}}},
                         {"offload_param", {{"device", "cpu"}}}}}};
  EXPECT_EQ(WithStrategy(config, *FindStrategy("stage_3_nvme"))["zero_optimization"],
            Json::parse(R"({"stage": 3, "sub_group_size": 1000,
                            "offload_optimizer": {"device": "nvme", "nvme_path": "/x"},
                            "offload_param": {"device": "nvme", "nvme_path": "/local_nvme"}})"));
  EXPECT_EQ(WithStrategy(config, *FindStrategy("stage_1")),
            Json::parse(R"({"fp16": {"enabled": true},
                            "zero_optimization": {"stage": 1, "sub_group_size": 1000}})"));
}

}  // namespace
}  // namespace dsat::engine
