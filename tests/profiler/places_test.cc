// Tests which places and wide knobs a search gets, by what is predicted of them.
#include "profiler/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "profiler/tuning_space.h"
#include "tests/profiler/small_gpt2.h"

namespace dsat {
namespace {

using testing::Contains;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr char kInterval[] = "/pipeline/activation_checkpoint_interval";
constexpr char kOnHost[] = "/activation_checkpointing/cpu_checkpointing";
constexpr char kOptimizer[] = "/zero_optimization/offload_optimizer/device";
constexpr char kParams[] = "/zero_optimization/offload_param/device";
constexpr char kRatio[] = "/zero_optimization/offload_optimizer/ratio";

ExperimentSpec BuiltinSpec() {
  ExperimentSpec spec;
  spec.entrypoint = {"builtin"};
  spec.slots_per_trial = 2;
  spec.hyperparameters = SmallGpt2(4);
  spec.ds_config = {{"train_micro_batch_size_per_gpu", 1},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.001}}}}},
                    {"zero_optimization", {{"stage", 1}, {"reduce_bucket_size", 100'000}}}};
  spec.options.zero_stages = {0, 1, 2, 3};
  spec.options.space = "wide";
  return spec;
}

ModelProfile BuiltinProfile(int64_t device_memory_bytes) {
  ModelProfile profile = SmallGpt2Profile(4, device_memory_bytes);
  profile.matmul_flops_per_s = 100'000'000'000;
  profile.copy_bytes_per_s = 10'000'000'000;
  return profile;
}

SearchSpace SpaceOf(const ExperimentSpec& spec, const ModelProfile& profile) {
  return MakeSearchSpace(*MakePredictor(spec, profile), profile, spec);
}

// Device memory of the submitted config at a stage, at micro-batch size 1.
int64_t PeakAt(const ExperimentSpec& spec, int stage) {
  Json config = spec.ds_config;
  SetAtPointer(config, "/zero_optimization/stage", stage);
  return MakePredictor(spec, BuiltinProfile(0))->Predict(config).device.peak_bytes;
}

// One byte less than any stage needs for one sample.
int64_t TooLittle(const ExperimentSpec& spec) {
  int64_t least = PeakAt(spec, 0);
  for (const int stage : {1, 2, 3})
    least = std::min(least, PeakAt(spec, stage));
  return least - 1;
}

Json SettingOf(const StageSpace& place, const char* pointer) {
  const auto found = place.settings.find(pointer);
  return found == place.settings.end() ? Json() : found->second;
}

bool Offloads(const StageSpace& place) {
  return SettingOf(place, kOptimizer) == "cpu" || SettingOf(place, kParams) == "cpu";
}

std::set<std::string> KnobsOf(const StageSpace& place) {
  std::set<std::string> pointers;
  for (const Knob& knob : place.knobs)
    pointers.insert(knob.pointer);
  return pointers;
}

TEST(PlacesTest, WithEnoughMemoryNothingIsWorthMoreThanTheStages) {
  const SearchSpace space = SpaceOf(BuiltinSpec(), BuiltinProfile(0));
  ASSERT_EQ(space.stages.size(), 4U);
  for (const StageSpace& place : space.stages)
    EXPECT_THAT(place.settings, IsEmpty());
  EXPECT_THAT(space.left_out,
              Contains(testing::AllOf(Field(&LeftOut::what, HasSubstr(kOptimizer)),
                                      Field(&LeftOut::why, HasSubstr("ms per sample")))));
  EXPECT_THAT(space.left_out,
              Contains(testing::AllOf(Field(&LeftOut::what, HasSubstr(kInterval)),
                                      Field(&LeftOut::why, HasSubstr("no larger micro-batch")))));
}

TEST(PlacesTest, APublishedSpaceHasTheStagesAlone) {
  ExperimentSpec spec = BuiltinSpec();
  spec.options.space = "published";
  const SearchSpace space = SpaceOf(spec, BuiltinProfile(TooLittle(spec)));
  ASSERT_EQ(space.stages.size(), 4U);
  EXPECT_THAT(space.left_out, IsEmpty());
  for (const StageSpace& place : space.stages) {
    EXPECT_THAT(place.settings, IsEmpty());
    EXPECT_THAT(KnobsOf(place), Not(Contains("/zero_optimization/sub_group_size")));
  }
}

TEST(PlacesTest, WhereNoStageFitsCheckpointsAndOffloadAreTried) {
  const ExperimentSpec spec = BuiltinSpec();
  const SearchSpace space = SpaceOf(spec, BuiltinProfile(TooLittle(spec)));
  bool checkpoints = false, offloads = false;
  std::set<std::string> seen;
  for (const StageSpace& place : space.stages) {
    EXPECT_TRUE(seen.insert(std::to_string(place.stage) + Json(place.settings).dump()).second);
    const bool changed = Offloads(place) || SettingOf(place, kInterval) > 0;
    EXPECT_EQ(place.approx_max_micro_batch > 0, changed) << Json(place.settings);
    checkpoints |= SettingOf(place, kInterval) > 0;
    offloads |= Offloads(place);
    if (place.stage == 0) {
      EXPECT_FALSE(Offloads(place));
    }
    if (place.stage < 3) {
      EXPECT_NE(SettingOf(place, kParams), "cpu");
    }
    if (SettingOf(place, kOnHost) == true) {
      EXPECT_GT(SettingOf(place, kInterval), 0);
    }
  }
  EXPECT_TRUE(checkpoints);
  EXPECT_TRUE(offloads);
  EXPECT_EQ(ToJson(SearchSpaceFromJson(ToJson(space))), ToJson(space));
}

TEST(PlacesTest, RecomputingCostsTimeAndSavesMemoryInTheForecasts) {
  ExperimentSpec spec = BuiltinSpec();
  spec.options.zero_stages = {1};
  spec.options.space = "published";
  spec.search_space = {{kInterval, {0, 1}}};
  const SearchSpace space = SpaceOf(spec, BuiltinProfile(PeakAt(spec, 1) * 2));
  ASSERT_EQ(space.stages.size(), 2U);
  const StageSpace &plain = space.stages[0], &checkpointed = space.stages[1];
  EXPECT_EQ(SettingOf(plain, kInterval), 0);
  EXPECT_EQ(SettingOf(checkpointed, kInterval), 1);
  EXPECT_GT(checkpointed.approx_max_micro_batch, plain.approx_max_micro_batch);
  EXPECT_LT(checkpointed.forecasts[1].peak_bytes, plain.forecasts[1].peak_bytes);
  EXPECT_GT(checkpointed.forecasts[1].compute_ms, 1.2 * plain.forecasts[1].compute_ms);
}

TEST(PlacesTest, KnobsBelongToThePlacesWhereTheyAct) {
  const ExperimentSpec spec = BuiltinSpec();
  const SearchSpace space = SpaceOf(spec, BuiltinProfile(TooLittle(spec)));
  for (const StageSpace& place : space.stages) {
    const std::set<std::string> knobs = KnobsOf(place);
    EXPECT_EQ(knobs.contains(kRatio), place.stage == 3 && Offloads(place)) << Json(place.settings);
    if (place.stage < 3) {
      EXPECT_FALSE(knobs.contains("/zero_optimization/stage3_prefetch_bucket_size"));
    }
    // The engine warns that it pins nothing.
    EXPECT_FALSE(knobs.contains("/zero_optimization/offload_optimizer/pin_memory"));
    for (const char* structural : {kInterval, kOnHost, kOptimizer, kParams})
      EXPECT_FALSE(knobs.contains(structural));
    for (const Knob& knob : place.knobs) {
      if (knob.pointer != kRatio) continue;
      ASSERT_EQ(knob.effects.size(), knob.values.size());
      EXPECT_GT(knob.effects.front().peak_bytes, 0) << "less is offloaded";
      EXPECT_EQ(knob.effects.back().peak_bytes, 0) << "as submitted";
    }
  }
}

TEST(PlacesTest, TheSubmittedPlaceStaysAndStagesThatRefuseItHaveTheDefault) {
  ExperimentSpec spec = BuiltinSpec();
  spec.options.zero_stages = {0, 1};
  SetAtPointer(spec.ds_config, kOptimizer, "cpu");
  const SearchSpace space = SpaceOf(spec, BuiltinProfile(0));
  ASSERT_EQ(space.stages.size(), 3U);
  EXPECT_EQ(SettingOf(space.stages[0], kOptimizer), "none");
  EXPECT_GT(space.stages[0].approx_max_micro_batch, 0);
  EXPECT_EQ(SettingOf(space.stages[1], kOptimizer), "cpu");
  EXPECT_EQ(SettingOf(space.stages[2], kOptimizer), "none");
}

TEST(PlacesTest, ADiskIsForWhatFitsNoOtherWay) {
  ExperimentSpec spec = BuiltinSpec();
  spec.options.zero_stages = {3};
  const auto uses_disk = [&](int64_t device_memory, int64_t host_memory) {
    spec.host_memory_bytes = host_memory;
    const SearchSpace space = SpaceOf(spec, BuiltinProfile(device_memory));
    return std::ranges::any_of(space.stages, [](const StageSpace& place) {
      return SettingOf(place, kOptimizer) == "nvme";
    });
  };
  const int64_t little = TooLittle(spec) / 2;
  EXPECT_FALSE(uses_disk(little, 0)) << "no path is given";
  SetAtPointer(spec.ds_config, "/zero_optimization/offload_optimizer/nvme_path", "/tmp");
  EXPECT_FALSE(uses_disk(PeakAt(spec, 3) * 2, 0));
  EXPECT_FALSE(uses_disk(TooLittle(spec), 0));
  // Neither the device nor the host holds the optimizer's states.
  EXPECT_TRUE(uses_disk(TooLittle(spec), 1'000));
}

constexpr int64_t kRoomy = 100'000'000'000;

// A command that a profile describes: 16 bytes of states for each parameter.
SearchSpace CommandSpace(const ExperimentSpec& spec, int64_t device_memory_bytes) {
  ModelProfile profile{.num_params = 1'000'000'000,
                       .trainable_num_params = 1'000'000'000,
                       .activation_bytes_per_sample = 1'000'000'000,
                       .device_memory_bytes = device_memory_bytes};
  return SpaceOf(spec, profile);
}

ExperimentSpec CommandSpec() {
  ExperimentSpec spec = BuiltinSpec();
  spec.entrypoint = {"python3", "train.py"};
  spec.ds_config = {{"train_micro_batch_size_per_gpu", 4},
                    {"bf16", {{"enabled", true}}},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.001}}}}}};
  return spec;
}

TEST(PlacesTest, ACommandOffloadsWhereItsMicroBatchDoesNotFitOtherwise) {
  const ExperimentSpec spec = CommandSpec();
  const SearchSpace roomy = CommandSpace(spec, kRoomy);
  EXPECT_EQ(roomy.stages.size(), 4U);
  EXPECT_THAT(
      roomy.left_out,
      Contains(Field(&LeftOut::why, "the submitted micro-batch size fits without offload")));
  EXPECT_TRUE(KnobsOf(roomy.stages[3]).contains("/zero_optimization/sub_group_size"));
  const SearchSpace tight = CommandSpace(spec, 10'000'000'000);
  EXPECT_GT(tight.stages.size(), 4U);
  for (const StageSpace& place : tight.stages) {
    EXPECT_EQ(place.settings.count(kInterval), 0U) << "a script need not follow the key";
    EXPECT_EQ(KnobsOf(place).contains("/zero_optimization/offload_optimizer/pin_memory"),
              Offloads(place));
    if (Offloads(place)) {
      EXPECT_GT(place.forecasts.at(0).update_ms, 0);
    }
  }
}

// A byte of activations allows more sizes than can be tried one after another.
TEST(PlacesTest, FewSizesAreFoundBelowAnyLargestOne) {
  ExperimentSpec spec = BuiltinSpec();
  spec.entrypoint = {"python3", "t.py", "--deepspeed_config", "d"};
  spec.search_space = {{kMicroBatchKey, {2, 4}}};
  ModelProfile profile = BuiltinProfile(1'000'000'000'000'000);
  profile.activation_bytes_per_sample = 1;
  EXPECT_THAT(SpaceOf(spec, profile).micro_batch_sizes, testing::ElementsAre(2, 4));
}

TEST(PlacesTest, ACommandHasTheKeysOfItsDeepSpeed) {
  ExperimentSpec spec = CommandSpec();
  spec.ds_config["compile"] = {{"backend", "inductor"}};
  constexpr char kNew[] = "/zero_optimization/memory_efficient_linear";
  constexpr char kOld[] = "/zero_optimization/round_robin_gradients";
  constexpr char kNewest[] = "/compile/deepcompile";  // Left out if the release is unknown.
  struct Has {
    const char* release;
    bool has_new, has_newest;
  };
  for (const auto& [release, has_new, has_newest] : {Has{"", true, false},
                                                     {"0.8.3", false, false},
                                                     {"0.9.0", true, false},
                                                     {"0.19.2+cu121", true, true}}) {
    spec.machine = Json::object();
    if (*release != 0) spec.machine["packages"]["deepspeed"] = release;
    const std::set<std::string> knobs = KnobsOf(CommandSpace(spec, kRoomy).stages[3]);
    EXPECT_EQ(knobs.contains(kNew), has_new) << release;
    EXPECT_EQ(knobs.contains(kNewest), has_newest) << release;
    EXPECT_FALSE(knobs.contains(kOld)) << "of stages 1 and 2";
    EXPECT_TRUE(KnobsOf(CommandSpace(spec, kRoomy).stages[2]).contains(kOld)) << release;
  }
}

TEST(PlacesTest, WhatTheUserNamesIsAPlaceEverywhere) {
  ExperimentSpec spec = CommandSpec();
  spec.search_space = {{kInterval, {0, 1}}, {kOptimizer, {"none", "cpu"}}};
  const SearchSpace space = CommandSpace(spec, kRoomy);
  EXPECT_EQ(space.stages.size(), 2U + 3 * 4U) << "stage 0 refuses to offload";
  spec.options.space = "published";
  EXPECT_EQ(CommandSpace(spec, kRoomy).stages.size(), 2U + 3 * 4U);
}

TEST(PlacesTest, HowTheSubmittedConfigIsSpelledDoesNotMatter) {
  const std::pair<Json, Json> spellings[] = {
      {{{"stage", 2}, {"cpu_offload", true}},
       {{"stage", 2}, {"offload_optimizer", {{"device", "cpu"}}}}},
      {{{"stage", 3}, {"max_live_parameters", 5}},
       {{"stage", 3}, {"stage3_max_live_parameters", 5}}},
      {true, {{"stage", 1}}}};
  for (ExperimentSpec spec : {BuiltinSpec(), CommandSpec()}) {
    for (const auto& [submitted, canonical] : spellings) {
      spec.ds_config["zero_optimization"] = canonical;
      const Json expected = ToJson(SpaceOf(spec, BuiltinProfile(10'000'000)));
      spec.ds_config["zero_optimization"] = submitted;
      EXPECT_EQ(ToJson(SpaceOf(spec, BuiltinProfile(10'000'000))), expected) << submitted;
    }
  }
}

std::vector<Json> ValuesOf(const StageSpace& place, const char* pointer) {
  const auto found = std::ranges::find(place.knobs, pointer, &Knob::pointer);
  return found == place.knobs.end() ? std::vector<Json>() : found->values;
}

constexpr char kCommunication[] = "/communication_data_type";
constexpr char kQuantized[] = "/zero_optimization/zero_quantized_weights";

TEST(PlacesTest, SemanticKeysAreSearchedOnlyIfTheUserAllowsIt) {
  ExperimentSpec spec = CommandSpec();
  spec.slots_per_trial = 4;
  for (const char* space : {"published", "wide"}) {
    for (const bool is_allowed : {false, true}) {
      spec.options.space = space;
      spec.options.allow_semantic = is_allowed;
      for (const StageSpace& place : CommandSpace(spec, kRoomy).stages) {
        EXPECT_EQ(KnobsOf(place).contains(kCommunication), is_allowed) << space;
        EXPECT_EQ(KnobsOf(place).contains(kQuantized), is_allowed && place.stage == 3) << space;
        for (const char* never : {"/gradient_clipping", "/optimizer/params/lr", "/bf16/enabled"})
          EXPECT_FALSE(KnobsOf(place).contains(never));
      }
    }
  }
  spec.slots_per_trial = 1;
  EXPECT_FALSE(KnobsOf(CommandSpace(spec, kRoomy).stages[3]).contains(kCommunication));
}

TEST(PlacesTest, ASemanticKeyKeepsTheSubmittedValueAndOnlyAddsOthers) {
  ExperimentSpec spec = CommandSpec();
  spec.options.allow_semantic = true;
  EXPECT_THAT(ValuesOf(CommandSpace(spec, kRoomy).stages[1], kCommunication),
              testing::ElementsAre(Json(), "fp32"))
      << "bf16 is the type of training";
  spec.ds_config[std::string(kCommunication).substr(1)] = "fp32";
  EXPECT_THAT(ValuesOf(CommandSpace(spec, kRoomy).stages[1], kCommunication),
              testing::ElementsAre("fp32", "bf16"));
  // The built-in engine honors it.
  ExperimentSpec builtin = BuiltinSpec();
  builtin.options.allow_semantic = true;
  const SearchSpace space = SpaceOf(builtin, BuiltinProfile(0));
  EXPECT_THAT(ValuesOf(space.stages[1], kCommunication), testing::ElementsAre(Json(), "bf16"));
  EXPECT_FALSE(KnobsOf(space.stages[3]).contains(kQuantized)) << "it refuses this one";
}

TEST(PlacesTest, WhatNeedsGpusIsNotSearchedWithoutThem) {
  ExperimentSpec spec = CommandSpec();
  spec.options.allow_semantic = true;
  const auto has = [&](const Json& machine) {
    spec.machine = machine;
    return KnobsOf(CommandSpace(spec, kRoomy).stages[3]).contains(kQuantized);
  };
  EXPECT_TRUE(has({{"cores", 8}, {"gpus", {"H100"}}}));
  EXPECT_TRUE(has({{"hosts", {{"w0", 8}}}})) << "what they have is not known";
  EXPECT_FALSE(has({{"cores", 8}, {"gpus", Json::array()}}));
  EXPECT_FALSE(has({{"cores", 8}}));
}

TEST(PlacesTest, SecondaryPartitionsDivideTheRanks) {
  constexpr char kPartition[] = "/zero_optimization/zero_hpz_partition_size";
  ExperimentSpec spec = CommandSpec();
  for (const auto& [ranks, expected] :
       {std::pair<int, std::vector<Json>>{2, {}}, {4, {1, 2}}, {6, {1, 2}}, {16, {1, 2, 4, 8}}}) {
    spec.slots_per_trial = ranks;
    const SearchSpace space = CommandSpace(spec, kRoomy);
    EXPECT_EQ(ValuesOf(space.stages[3], kPartition), expected) << ranks;
    for (const Knob& knob : space.stages[3].knobs) {
      if (knob.pointer != kPartition) continue;
      EXPECT_EQ(knob.effects.at(0).peak_bytes, 0);
      EXPECT_EQ(knob.effects.at(1).peak_bytes, 1'000'000'000) << "2 bytes over 2 ranks";
    }
  }
}

TEST(PlacesTest, DeepCompileIsForScriptsThatSayThatTheyCompile) {
  constexpr char kDeep[] = "/compile/deepcompile";
  ExperimentSpec spec = CommandSpec();
  spec.machine = {{"packages", {{"deepspeed", "0.19.2"}}}};
  EXPECT_FALSE(KnobsOf(CommandSpace(spec, kRoomy).stages[3]).contains(kDeep));
  spec.ds_config["compile"] = {{"deepcompile", false}};
  EXPECT_TRUE(KnobsOf(CommandSpace(spec, kRoomy).stages[3]).contains(kDeep));
  EXPECT_FALSE(KnobsOf(CommandSpace(spec, kRoomy).stages[0]).contains(kDeep));
  spec.machine["packages"]["deepspeed"] = "0.16.5";
  EXPECT_FALSE(KnobsOf(CommandSpace(spec, kRoomy).stages[3]).contains(kDeep));
}

TEST(PlacesTest, DisksAreTunedWhereTheyAreUsed) {
  ExperimentSpec command = CommandSpec(), old_command = CommandSpec();
  command.machine = {{"packages", {{"deepspeed", "0.19.2"}}}};
  old_command.machine = {{"packages", {{"deepspeed", "0.16.3"}}}};  // It knows /aio/thread_count.
  for (ExperimentSpec spec : {BuiltinSpec(), command, old_command}) {
    spec.options.zero_stages = {3};
    SetAtPointer(spec.ds_config, "/zero_optimization/stage", 3);
    for (const char* device : {"none", "cpu", "nvme"}) {
      SetAtPointer(spec.ds_config, "/zero_optimization/offload_optimizer",
                   {{"device", device}, {"nvme_path", "/tmp"}});
      const SearchSpace space =
          IsBuiltin(spec) ? SpaceOf(spec, BuiltinProfile(0)) : CommandSpace(spec, kRoomy);
      const StageSpace& submitted = space.stages[0];
      for (const char* key : {"/aio/block_size", "/aio/queue_depth", "/aio/intra_op_parallelism",
                              "/aio/single_submit", "/aio/overlap_events"}) {
        EXPECT_EQ(KnobsOf(submitted).contains(key), device == std::string("nvme"))
            << key << " " << device << " " << spec.entrypoint[0];
      }
    }
  }
}

// Conditions on places.

bool IsLeftOut(const SearchSpace& space, const std::string& what, const std::string& condition) {
  return std::ranges::any_of(space.left_out, [&](const LeftOut& left_out) {
    return left_out.what == what && left_out.why.find(condition) != std::string::npos;
  });
}

TEST(PlacesTest, ConditionsRemoveWholePlaces) {
  ExperimentSpec spec = CommandSpec();
  spec.search_space = {{kOptimizer, {"none", "cpu"}}};
  spec.where = {std::string(kOptimizer) + " != cpu"};
  const SearchSpace plain = CommandSpace(spec, kRoomy);
  EXPECT_EQ(plain.stages.size(), 4U);
  for (const StageSpace& place : plain.stages)
    EXPECT_FALSE(Offloads(place));
  EXPECT_TRUE(
      IsLeftOut(plain, "stage 2 with " + std::string(kOptimizer) + " \"cpu\"", spec.where[0]));

  // A place that is left out must not make another one look useless.
  spec.where = {std::string(kOptimizer) + " == cpu"};
  const SearchSpace offloaded = CommandSpace(spec, kRoomy);
  ASSERT_FALSE(offloaded.stages.empty());
  for (const StageSpace& place : offloaded.stages)
    EXPECT_EQ(SettingOf(place, kOptimizer), "cpu");
  EXPECT_TRUE(IsLeftOut(offloaded, "stage 0", spec.where[0]));
}

TEST(PlacesTest, ConditionsOnKnobsRemoveStagesThatLackThem) {
  ExperimentSpec spec = CommandSpec();
  spec.where = {"/zero_optimization/overlap_comm == true"};
  const SearchSpace space = CommandSpace(spec, kRoomy);
  ASSERT_EQ(space.stages.size(), 2U);
  EXPECT_EQ(space.stages[0].stage, 2);
  EXPECT_TRUE(IsLeftOut(space, "stage 1", "the condition \"" + spec.where[0] + "\" of where"));
}

TEST(PlacesTest, ConditionsThatLeaveNothingAreRefusedByName) {
  ExperimentSpec spec = CommandSpec();
  spec.search_space = {{"/zero_optimization/reduce_bucket_size", {1, 2}},
                       {"/zero_optimization/allgather_bucket_size", {2, 3}}};
  const auto refusal_of = [&](std::vector<std::string> where) -> std::string {
    spec.where = std::move(where);
    try {
      CheckPlaces(spec);
    } catch (const Error& error) {
      EXPECT_THROW(CommandSpace(spec, kRoomy), Error);
      return error.what();
    }
    EXPECT_FALSE(CommandSpace(spec, kRoomy).stages.empty());
    return "";
  };
  const std::string equal =
      "/zero_optimization/reduce_bucket_size == /zero_optimization/allgather_bucket_size";
  const std::string small = "/zero_optimization/reduce_bucket_size < 2";
  EXPECT_EQ(refusal_of({small}), "");
  spec.options.zero_stages = {1, 2};  // Stage 0 has only one of the buckets.
  EXPECT_EQ(refusal_of({equal}), "");
  EXPECT_THAT(refusal_of({equal, small}),
              testing::AllOf(HasSubstr("where: "), HasSubstr(equal), HasSubstr(small)));
}

}  // namespace
}  // namespace dsat
