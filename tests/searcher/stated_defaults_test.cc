// Tests which defaults the written configuration states.
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/version.h"
#include "engine/config/validate.h"
#include "searcher/results.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

constexpr char kReduce[] = "/zero_optimization/reduce_bucket_size";

Json Config() {
  return {{"train_micro_batch_size_per_gpu", 1},
          {"bf16", {{"enabled", true}}},
          {"zero_optimization",
           {{"stage", 3}, {"offload_optimizer", {{"device", "cpu"}, {"pin_memory", "auto"}}}}}};
}

ExperimentSpec Script(const std::string& deepspeed) {
  ExperimentSpec spec = SampleSpec();
  spec.entrypoint = {"python3", "train.py"};
  spec.machine = {{"dsat", "0.0.9"}, {"packages", {{"deepspeed", deepspeed}, {"torch", "2.9"}}}};
  return spec;
}

// The keys that are added to Config().
Json Stated(const ExperimentSpec& spec, const std::vector<Knob>& knobs = {}) {
  const Json config = WithStatedDefaults(spec, knobs, Config());
  engine::ValidateDsConfig(config, "config", 2);
  Json added = Json::object();
  const Json given = Config().flatten(), stated = config.flatten();
  for (const auto& [pointer, value] : stated.items()) {
    if (!given.contains(pointer)) added[pointer] = value;
  }
  return added;
}

TEST(StatedDefaultsTest, TheBuiltinEngineStatesItsOwnDefaults) {
  EXPECT_EQ(Stated(SampleSpec()), (Json{{"/bf16/check_grad_overflow", true},
                                        {"/gradient_clipping", 1.0},
                                        {"/zero_optimization/overlap_comm", true}}));
}

TEST(StatedDefaultsTest, SearchedKeysAreStatedWhereTheyActAndAreNotGiven) {
  const std::vector<Knob> knobs = {{kReduce, {1}}, {"/zero_optimization/stage", {3}}};
  EXPECT_EQ(Stated(SampleSpec(), knobs)[kReduce], 500'000'000);
  EXPECT_FALSE(Stated(SampleSpec()).contains(kReduce));
  const Json below = {{"zero_optimization", {{"stage", 1}}}};
  const std::vector<Knob> stage3 = {{"/zero_optimization/stage3_prefetch_bucket_size", {1}}};
  EXPECT_EQ(WithStatedDefaults(SampleSpec(), stage3, below)["zero_optimization"],
            (Json{{"stage", 1}, {"overlap_comm", false}}));
}

TEST(StatedDefaultsTest, AScriptStatesTheDefaultsOfItsDeepSpeed) {
  EXPECT_EQ(Stated(Script("0.19.8")), Stated(SampleSpec()));
  EXPECT_EQ(Stated(Script("0.19.3+cpu")), Stated(SampleSpec()));
  EXPECT_EQ(Stated(Script("0.18.9")), (Json{{"/bf16/check_grad_overflow", false},
                                            {"/gradient_clipping", 0.0},
                                            {"/zero_optimization/overlap_comm", true}}));
  // The release does not know the key of bf16.
  EXPECT_EQ(Stated(Script("0.16.9")),
            (Json{{"/gradient_clipping", 0.0}, {"/zero_optimization/overlap_comm", true}}));
  EXPECT_EQ(Stated(Script("")), (Json{{"/zero_optimization/overlap_comm", true}}));
}

TEST(StatedDefaultsTest, PinnedMemoryFollowsTheReleaseWhereSomethingIsOffloaded) {
  Json config = Config();
  config["zero_optimization"]["offload_optimizer"].erase("pin_memory");
  const auto pins = [&](const std::string& release) {
    return WithStatedDefaults(Script(release), {}, config)
        .at("/zero_optimization/offload_optimizer/pin_memory"_json_pointer);
  };
  EXPECT_EQ(pins("0.19.4"), false);
  EXPECT_EQ(pins("0.19.5"), true);
}

TEST(StatedDefaultsTest, HuggingFacesTrainerKeepsItsOwnClipping) {
  TempFolder folder;
  ExperimentSpec spec = Script("0.19.8");
  spec.model_dir = folder.path();
  WriteFileAtomic(folder / "train.py", "args = TrainingArguments(max_grad_norm=0.5)\n");
  EXPECT_FALSE(Stated(spec).contains("/gradient_clipping"));
  WriteFileAtomic(folder / "train.py", "import deepspeed\n");
  EXPECT_TRUE(Stated(spec).contains("/gradient_clipping"));
  spec.entrypoint.insert(spec.entrypoint.end(), {"--per_device_train_batch_size", "4"});
  EXPECT_FALSE(Stated(spec).contains("/gradient_clipping"));
}

TEST(StatedDefaultsTest, VersionsAreThoseThatTheTrialsRanWith) {
  EXPECT_EQ(VersionsOf(SampleSpec()), (Json{{"dsat", kVersion}}));
  EXPECT_EQ(VersionsOf(Script("0.19.8")),
            (Json{{"dsat", "0.0.9"}, {"deepspeed", "0.19.8"}, {"torch", "2.9"}}));
}

}  // namespace
}  // namespace dsat
