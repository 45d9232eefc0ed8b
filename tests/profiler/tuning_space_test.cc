// Tests which knobs and values a profile leaves, by default and as published.
#include "profiler/tuning_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dsat {
namespace {

// The space by the formulas.
SearchSpace MakeSearchSpace(const ModelProfile& profile, const ExperimentSpec& spec) {
  return dsat::MakeSearchSpace(*MakeFormulaPredictor(spec, profile), profile, spec);
}
SearchSpace MakeSearchSpace(const ModelProfile& profile, const Json& ds_config,
                            const SearchOptions& options, int64_t world_size) {
  ExperimentSpec spec;
  spec.slots_per_trial = world_size;
  spec.options = options;
  spec.ds_config = ds_config;
  return MakeSearchSpace(profile, spec);
}

using Values = std::vector<Json>;

ModelProfile Profile(int64_t params) {
  return {.num_params = params,
          .trainable_num_params = params,
          .activation_bytes_per_sample = 1000,
          .device_memory_bytes = 20 * params + 64'000};
}

std::map<std::string, Values> KnobsOf(const StageSpace& stage) {
  std::map<std::string, Values> knobs;
  for (const Knob& knob : stage.knobs) {
    EXPECT_TRUE(knob.pointer.starts_with("/zero_optimization/"));
    knobs[knob.pointer.substr(19)] = knob.values;
  }
  return knobs;
}

SearchOptions Options(bool compat) {
  SearchOptions options;
  options.zero_stages = {0, 1, 2, 3};
  options.compat_determined = compat;
  return options;
}

const Values kAllBuckets = {1'000'000,   5'000'000,   10'000'000,    50'000'000,
                            100'000'000, 500'000'000, 1'000'000'000, 5'000'000'000};
const Values kSwitch = {true, false};

TEST(TuningSpaceTest, ThePublishedSpaceHas64Then512Then1024Configurations) {
  for (const int64_t world_size : {1, 8}) {
    const SearchSpace space =
        MakeSearchSpace(Profile(1000), Json::object(), Options(true), world_size);
    std::vector<size_t> sizes;
    for (const StageSpace& stage : space.stages) {
      size_t size = 1;
      for (const auto& [key, values] : KnobsOf(stage))
        size *= values.size();
      sizes.push_back(size);
    }
    EXPECT_EQ(sizes, (std::vector<size_t>{64, 64, 512, 1024}));
    EXPECT_EQ(KnobsOf(space.stages[3])["allgather_partitions"], kSwitch);
  }
}

TEST(TuningSpaceTest, ByDefaultALargeModelOnSeveralRanksHasTheKnobsThatMatter) {
  const SearchSpace space =
      MakeSearchSpace(Profile(4'000'000'000), Json::object(), Options(false), 8);
  const std::map<std::string, Values> stage0 = {{"reduce_bucket_size", kAllBuckets}};
  const std::map<std::string, Values> stage1 = {{"reduce_bucket_size", kAllBuckets},
                                                {"allgather_bucket_size", kAllBuckets}};
  std::map<std::string, Values> stage2 = stage1;
  stage2["overlap_comm"] = stage2["reduce_scatter"] = stage2["contiguous_gradients"] = kSwitch;
  ASSERT_EQ(space.stages.size(), 4u);
  EXPECT_EQ(KnobsOf(space.stages[0]), stage0);
  EXPECT_EQ(KnobsOf(space.stages[1]), stage1);
  EXPECT_EQ(KnobsOf(space.stages[2]), stage2);
  EXPECT_EQ(KnobsOf(space.stages[3]), stage2);
}

TEST(TuningSpaceTest, OnOneRankThereIsNothingToCommunicateButDeepSpeedAllocatesBuckets) {
  const Json config = {{"zero_optimization", {{"contiguous_gradients", false}}}};
  const SearchSpace space = MakeSearchSpace(Profile(4000), config, Options(false), 1);
  const std::map<std::string, Values> bucket = {{"reduce_bucket_size", {1'000'000}}};
  std::map<std::string, Values> with_switches = bucket;
  with_switches["overlap_comm"] = with_switches["contiguous_gradients"] = kSwitch;
  EXPECT_TRUE(space.stages[0].knobs.empty());
  EXPECT_EQ(KnobsOf(space.stages[1]), bucket);
  EXPECT_EQ(KnobsOf(space.stages[2]), with_switches);
  EXPECT_EQ(KnobsOf(space.stages[3]), with_switches);
  EXPECT_TRUE(space.workload.whole_buckets);

  ExperimentSpec builtin;
  builtin.entrypoint = {"builtin"};
  builtin.options = Options(false);
  const SearchSpace alone = MakeSearchSpace(Profile(4000), builtin);
  for (const StageSpace& stage : alone.stages)
    EXPECT_TRUE(stage.knobs.empty());
  EXPECT_FALSE(alone.workload.whole_buckets);
}

TEST(TuningSpaceTest, BucketsEndAtTheSmallestThatHoldsEveryParameter) {
  const std::map<int64_t, size_t> values_for = {
      {10, 1}, {1'000'000, 1}, {1'000'001, 2}, {60'000'000, 5}, {6'000'000'000, 8}};
  for (const auto& [params, count] : values_for) {
    const SearchSpace space = MakeSearchSpace(Profile(params), Json::object(), Options(false), 2);
    for (const Knob& knob : space.stages[1].knobs) {
      EXPECT_EQ(knob.values, Values(kAllBuckets.begin(),
                                    kAllBuckets.begin() + static_cast<std::ptrdiff_t>(count)));
    }
  }
}

TEST(TuningSpaceTest, StagesAndTheirStartsFollowTheOptionsAndTheProfile) {
  SearchOptions options = Options(false);
  options.zero_stages = {3, 1};
  const Json config = {{"bf16", {{"enabled", true}}},
                       {"zero_optimization", {{"contiguous_gradients", false}}}};
  // 1000 parameters on one rank: 16000 bytes; 20 * 1000 + 64000 - 16000 are left for activations.
  const SearchSpace space = MakeSearchSpace(Profile(1000), config, options, 1);
  ASSERT_EQ(space.stages.size(), 2u);
  EXPECT_EQ(space.stages[0].stage, 3);
  EXPECT_EQ(space.stages[1].stage, 1);
  EXPECT_EQ(space.stages[0].approx_max_micro_batch, 68);
  options.compat_determined = true;
  EXPECT_EQ(MakeSearchSpace(Profile(1000), config, options, 1).stages[0].approx_max_micro_batch,
            67);
}

TEST(TuningSpaceTest, EveryStageHasForecastsUpToTwiceItsLargestSize) {
  const Json config = {
      {"train_micro_batch_size_per_gpu", 4},
      {"gradient_accumulation_steps", 3},
      {"bf16", {{"enabled", true}}},
      {"zero_optimization",
       {{"stage", 2}, {"reduce_bucket_size", 500}, {"contiguous_gradients", false}}}};
  const SearchSpace space = MakeSearchSpace(Profile(1000), config, Options(false), 1);
  for (const StageSpace& stage : space.stages) {
    ASSERT_EQ(stage.approx_max_micro_batch, 68);
    ASSERT_EQ(stage.forecasts.size(), 8u);  // 1 to 128.
    for (size_t i = 0; i < stage.forecasts.size(); ++i) {
      const Forecast& forecast = stage.forecasts[i];
      EXPECT_EQ(forecast.micro_batch_size, int64_t{1} << i);
      EXPECT_EQ(forecast.peak_bytes, 16'000 + 1000 * forecast.micro_batch_size);
    }
    EXPECT_EQ(stage.submitted.at("/zero_optimization/reduce_bucket_size"), 500);
    EXPECT_EQ(stage.submitted.at("/zero_optimization/overlap_comm"), stage.stage == 3);
  }
  EXPECT_EQ(space.workload.num_params, 1000);
  EXPECT_EQ(space.workload.bytes_per_param, 2);
  EXPECT_EQ(space.workload.device_memory_bytes, 84'000);
  EXPECT_EQ(space.workload.micro_batch_size, 4);
  EXPECT_EQ(space.workload.accumulation_steps, 3);
  EXPECT_EQ(space.workload.stage, 2);
  EXPECT_EQ(ToJson(SearchSpaceFromJson(ToJson(space))), ToJson(space));
}

TEST(TuningSpaceTest, AFixedBatchIsSharedByTheRanks) {
  SearchOptions options = Options(false);
  options.train_batch_size = 96;
  options.divisible_by = 4;
  const SearchSpace space = MakeSearchSpace(Profile(1000), Json::object(), options, 2);
  EXPECT_EQ(space.workload.data_parallel, 2);
  EXPECT_EQ(space.samples_per_step, 48);
  EXPECT_EQ(space.divisible_by, 4);
}

TEST(TuningSpaceTest, ABatchInOneMicroBatchIsForecastWithoutAccumulation) {
  SearchOptions options = Options(false);
  options.train_batch_size = 16;
  const SearchSpace space = MakeSearchSpace(Profile(1000), Json::object(), options, 2);
  ASSERT_EQ(space.samples_per_step, 8);
  for (const StageSpace& stage : space.stages) {
    for (const Forecast& forecast : stage.forecasts)
      EXPECT_EQ(forecast.accumulation_steps, forecast.micro_batch_size < 8 ? 2 : 1);
  }
}

std::vector<Json> ValuesOf(const StageSpace& stage, const std::string& pointer) {
  for (const Knob& knob : stage.knobs) {
    if (knob.pointer == pointer) return knob.values;
  }
  return {};
}

TEST(TuningSpaceTest, TheUsersValuesReplaceThoseOfTheTable) {
  ExperimentSpec spec;
  spec.slots_per_trial = 2;
  spec.options = Options(false);
  const std::string bucket = "/zero_optimization/reduce_bucket_size";
  const std::string prefetch = "/zero_optimization/stage3_prefetch_bucket_size";
  spec.ds_config = {{"tensor_parallel", {{"new_key", "a"}}}};
  spec.search_space = {{bucket, {7, 11}},
                       {prefetch, {5}},
                       {"/tensor_parallel/new_key", {"a", "b"}},
                       {"/train_micro_batch_size_per_gpu", {2, 8}}};
  const SearchSpace space = MakeSearchSpace(Profile(1000), spec);
  for (const StageSpace& stage : space.stages) {
    EXPECT_EQ(ValuesOf(stage, bucket), (Values{7, 11}));
    EXPECT_EQ(stage.submitted.at(bucket), 500'000'000);
    EXPECT_EQ(ValuesOf(stage, prefetch), stage.stage == 3 ? Values{5} : Values());
    EXPECT_EQ(ValuesOf(stage, "/tensor_parallel/new_key"), (Values{"a", "b"}));
    EXPECT_EQ(stage.submitted.at("/tensor_parallel/new_key"), "a");
    EXPECT_EQ(ValuesOf(stage, "/train_micro_batch_size_per_gpu"), Values());
  }
  EXPECT_FALSE(ValuesOf(space.stages[2], "/zero_optimization/overlap_comm").empty());
  EXPECT_EQ(space.micro_batch_sizes, (std::vector<int64_t>{2, 8}));
  EXPECT_EQ(ToJson(SearchSpaceFromJson(ToJson(space))), ToJson(space));
}

constexpr char kCheckpointing[] = "/dsat/trainer/gradient_checkpointing";

// A script whose trainer checkpoints activations, or not.
SearchSpace SpaceOfTrainer(bool checkpoints, ModelProfile profile) {
  SearchOptions options = Options(false);
  options.zero_stages = {1};
  options.space = "wide";
  profile.trainer = {{"gradient_checkpointing", checkpoints},
                     {"attn_implementation", "eager"},
                     {"optim", "adamw_torch_fused"}};
  return MakeSearchSpace(profile, {{"dsat", {{"trainer", profile.trainer}}}}, options, 1);
}

TEST(TuningSpaceTest, CheckpointingOfATrainerIsAPlaceWithItsOwnActivations) {
  ModelProfile profile = Profile(1000);
  profile.device_memory_bytes = 1'000'000;
  profile.device = "cpu";  // Where buckets take what they hold.
  const SearchSpace on = SpaceOfTrainer(true, profile);
  ASSERT_EQ(on.stages.size(), 2U);
  EXPECT_EQ(on.stages[0].settings.at(kCheckpointing), true);
  EXPECT_EQ(on.stages[1].settings.at(kCheckpointing), false);
  EXPECT_GT(on.stages[0].approx_max_micro_batch, 3 * on.stages[1].approx_max_micro_batch);
  const SearchSpace off = SpaceOfTrainer(false, profile);
  ASSERT_EQ(off.stages.size(), 2U);
  EXPECT_GT(off.stages[1].approx_max_micro_batch, 3 * off.stages[0].approx_max_micro_batch);
}

TEST(TuningSpaceTest, OtherArgumentsOfATrainerAreKnobsBesidesTheirSubmittedValues) {
  const std::vector<Knob> knobs = SpaceOfTrainer(false, Profile(1000)).stages[0].knobs;
  const auto found = std::ranges::find(knobs, "/dsat/trainer/attn_implementation", &Knob::pointer);
  ASSERT_NE(found, knobs.end());
  EXPECT_EQ(found->values, Values({"eager", "sdpa"}));
  EXPECT_TRUE(found->effects.empty()) << "each value is worth a launch";
  const auto has = [](const std::vector<Knob>& all, const char* pointer) {
    return std::ranges::find(all, pointer, &Knob::pointer) != all.end();
  };
  EXPECT_FALSE(has(knobs, "/dsat/trainer/optim")) << "the fastest is submitted";
  SearchOptions wide = Options(false);
  wide.space = "wide";
  const SearchSpace none = MakeSearchSpace(Profile(1000), Json::object(), wide, 1);
  EXPECT_FALSE(has(none.stages[0].knobs, "/dsat/trainer/attn_implementation"));
  EXPECT_FALSE(none.stages[0].submitted.contains(kCheckpointing));
}

// The values of a key at stage 1, on `num_ranks` ranks of a DeepSpeed that has it.
Values ValuesOnRanks(const char* pointer, Json ds_config, int64_t num_ranks,
                     std::optional<int64_t> batch = {}) {
  ExperimentSpec spec;
  spec.slots_per_trial = num_ranks;
  spec.options = Options(false);
  spec.options.space = "wide";
  spec.options.train_batch_size = batch;
  spec.machine = {{"packages", {{"deepspeed", "0.19.8"}}}};
  ds_config["train_micro_batch_size_per_gpu"] = 2;
  spec.ds_config = std::move(ds_config);
  return ValuesOf(MakeSearchSpace(Profile(1000), spec).stages[1], pointer);
}

TEST(TuningSpaceTest, ExpertsThatTheProfileFindsAreDistributedOverTheRanks) {
  const char* const size = "/expert_parallel/autoep_size";
  const Json found = {{"dsat", {{"trainer", {{"num_experts", 12}}}}}};
  EXPECT_EQ(ValuesOnRanks(size, found, 16), (Values{1, 2, 4}));
  EXPECT_EQ(ValuesOnRanks(size, found, 6, 12), (Values{1, 2}));
  EXPECT_EQ(ValuesOnRanks(size, found, 1), Values());
  EXPECT_EQ(ValuesOnRanks(size, Json::object(), 16), Values());
  Json given = found;
  given["expert_parallel"] = {{"enabled", true}, {"autoep_size", 4}};
  EXPECT_EQ(ValuesOnRanks(size, given, 16), (Values{4, 1, 2}));
}

TEST(TuningSpaceTest, RanksShareSamplesIfTheyDoSoAsSubmittedAndTheBatchIsFree) {
  const char* const size = "/tensor_parallel/autotp_size";
  const Json shared = {{"tensor_parallel", {{"autotp_size", 2}}}};
  EXPECT_EQ(ValuesOnRanks(size, shared, 8), (Values{2, 1, 4, 8}));
  EXPECT_EQ(ValuesOnRanks(size, shared, 8, 16), Values()) << "a kept batch has four shares";
  EXPECT_EQ(ValuesOnRanks(size, Json::object(), 8), Values());
  const char* const sequences = "/sequence_parallel_size";
  EXPECT_EQ(ValuesOnRanks(sequences, {{"sequence_parallel_size", 2}}, 4), (Values{2, 1, 4}));
}

}  // namespace
}  // namespace dsat
