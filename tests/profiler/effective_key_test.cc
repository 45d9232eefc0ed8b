// Tests which configurations are the same, and which are not.
#include "profiler/effective_key.h"

#include <gtest/gtest.h>

#include <string>

namespace dsat {
namespace {

constexpr int64_t kParams = 10'000'000;

Json Config(int stage, const Json& zero = Json::object()) {
  Json config = {{"train_micro_batch_size_per_gpu", 4},
                 {"gradient_accumulation_steps", 1},
                 {"train_batch_size", 8},
                 {"zero_optimization", {{"stage", stage}}}};
  config["zero_optimization"].update(zero);
  return config;
}

ExperimentSpec Spec(int64_t world_size, const char* entrypoint = "builtin") {
  ExperimentSpec spec;
  spec.entrypoint = {entrypoint};
  spec.slots_per_trial = world_size;
  return spec;
}

bool Equal(const Json& a, const Json& b, const ExperimentSpec& spec = Spec(2)) {
  return EffectiveKey(a, spec, kParams) == EffectiveKey(b, spec, kParams);
}

TEST(EffectiveKeyTest, WhatMattersTellsConfigurationsApart) {
  EXPECT_FALSE(Equal(Config(1), Config(2)));
  EXPECT_FALSE(Equal(Config(1), Config(2), Spec(1)));
  Json larger = Config(1);
  larger["train_micro_batch_size_per_gpu"] = 8;
  EXPECT_FALSE(Equal(Config(1), larger));
  for (const char* key : {"reduce_bucket_size", "allgather_bucket_size"}) {
    EXPECT_FALSE(Equal(Config(1, {{key, 1000}}), Config(1, {{key, 2000}}))) << key;
  }
  for (const char* key :
       {"overlap_comm", "reduce_scatter", "contiguous_gradients", "allgather_partitions"}) {
    EXPECT_FALSE(Equal(Config(2, {{key, true}}), Config(2, {{key, false}}))) << key;
  }
  EXPECT_FALSE(Equal(Config(3, {{"stage3_max_live_parameters", 1}}), Config(3)));
  Json other = Config(1);
  other["bf16"] = {{"enabled", true}};
  EXPECT_FALSE(Equal(Config(1), other));
}

TEST(EffectiveKeyTest, SpellingDoesNotMatter) {
  EXPECT_TRUE(Equal(Config(1, {{"reduce_bucket_size", 5e6}}),
                    Config(1, {{"reduce_bucket_size", 5'000'000}})));
  const Json a = Json::parse(R"({"a": 1, "zero_optimization": {"stage": 1}, "b": 2.0})");
  const Json b = Json::parse(R"({"b": 2, "a": 1.0, "zero_optimization": {"stage": 1.0}})");
  EXPECT_TRUE(Equal(a, b));
  const Json c = Json::parse(R"({"b": 2.5, "a": 1, "zero_optimization": {"stage": 1}})");
  EXPECT_FALSE(Equal(a, c));
}

TEST(EffectiveKeyTest, ADefaultGivenIsADefault) {
  EXPECT_TRUE(Equal(Config(2, {{"overlap_comm", false}}), Config(2)));
  EXPECT_TRUE(Equal(Config(3, {{"overlap_comm", true}}), Config(3)));
  EXPECT_FALSE(Equal(Config(3, {{"overlap_comm", false}}), Config(3)));
  EXPECT_TRUE(Equal(Config(2, {{"reduce_scatter", true}}), Config(2)));
  Json without = Config(0);
  without.erase("zero_optimization");
  EXPECT_TRUE(Equal(Config(0), without));
}

TEST(EffectiveKeyTest, SearchedDefaultsOfSemanticKeysFold) {
  EXPECT_TRUE(Equal(Config(3, {{"zero_quantized_weights", false}}), Config(3)));
  EXPECT_FALSE(Equal(Config(3, {{"zero_quantized_weights", true}}), Config(3)));
  EXPECT_TRUE(Equal(Config(2, {{"zero_quantized_weights", true}}), Config(2)));
  Json clipped = Config(3);
  clipped["gradient_clipping"] = 1.0;
  EXPECT_FALSE(Equal(clipped, Config(3))) << "what this default means depends on the release";
}

TEST(EffectiveKeyTest, KeysWithoutEffectAtLaterStagesFoldThere) {
  const Json on{{"round_robin_gradients", true}};
  EXPECT_FALSE(Equal(Config(2, on), Config(2)));
  EXPECT_TRUE(Equal(Config(3, on), Config(3)));
}

TEST(EffectiveKeyTest, SizesBeyondTheParametersFoldTogether) {
  for (const char* key : {"reduce_bucket_size", "allgather_bucket_size"}) {
    EXPECT_TRUE(Equal(Config(1, {{key, kParams}}), Config(1, {{key, 5'000'000'000}}))) << key;
    EXPECT_FALSE(Equal(Config(1, {{key, kParams - 1}}), Config(1, {{key, kParams}}))) << key;
    EXPECT_NE(EffectiveKey(Config(1, {{key, kParams}}), Spec(2), 0),
              EffectiveKey(Config(1, {{key, 2 * kParams}}), Spec(2), 0))
        << "nothing folds while the number of parameters is unknown";
  }
  EXPECT_TRUE(Equal(Config(3, {{"stage3_max_live_parameters", kParams}}), Config(3)));
}

TEST(EffectiveKeyTest, KeysWithoutEffectFoldAway) {
  EXPECT_TRUE(Equal(Config(0, {{"allgather_partitions", true}}),
                    Config(0, {{"allgather_partitions", false}})));
  EXPECT_TRUE(
      Equal(Config(0, {{"allgather_bucket_size", 1}}), Config(0, {{"allgather_bucket_size", 2}})));
  EXPECT_TRUE(Equal(Config(2, {{"stage3_prefetch_bucket_size", 1}}), Config(2)));
}

TEST(EffectiveKeyTest, OnOneRankCommunicationKeysFoldAway) {
  for (const char* key :
       {"overlap_comm", "reduce_scatter", "contiguous_gradients", "allgather_partitions"}) {
    EXPECT_TRUE(Equal(Config(2, {{key, true}}), Config(2, {{key, false}}), Spec(1))) << key;
  }
  for (const char* key :
       {"reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"}) {
    EXPECT_TRUE(Equal(Config(3, {{key, 1}}), Config(3, {{key, 2}}), Spec(1))) << key;
  }
}

TEST(EffectiveKeyTest, WhatDeepSpeedAllocatesBucketsByFoldsOnlyAtStage0) {
  const Json small{{"reduce_bucket_size", kParams}}, large{{"reduce_bucket_size", 2 * kParams}};
  for (const int64_t world_size : {1, 2}) {
    const ExperimentSpec script = Spec(world_size, "train.py");
    EXPECT_TRUE(Equal(Config(0, small), Config(0, large), script));
    for (const int stage : {1, 2, 3})
      EXPECT_FALSE(Equal(Config(stage, small), Config(stage, large), script)) << stage;
    for (const char* key : {"overlap_comm", "contiguous_gradients"})
      EXPECT_FALSE(Equal(Config(2, {{key, true}}), Config(2, {{key, false}}), script)) << key;
    EXPECT_EQ(Equal(Config(2, {{"reduce_scatter", true}}), Config(2, {{"reduce_scatter", false}}),
                    script),
              world_size == 1);
    EXPECT_TRUE(Equal(Config(1, {{"allgather_bucket_size", kParams}}),
                      Config(1, {{"allgather_bucket_size", 2 * kParams}}), script));
  }
}

}  // namespace
}  // namespace dsat
