// Checkpoints: what is loaded is what was saved, at any number of ranks; broken ones are refused.
#include "engine/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "engine/safetensors.h"
#include "tests/engine/training.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / fmt::format("dsat-{}-{}", getpid(), info->name());
    fs::remove_all(dir_);
  }
  ~CheckpointTest() override { fs::remove_all(dir_); }

  struct Result {
    std::vector<float> params;
    std::vector<double> losses;
  };

  // Trains `steps` steps, from the newest checkpoint if `load`, and saves one at the end if `save`.
  Result Run(const Model& model, const DsConfig& config, int world_size, int steps, bool load,
             bool save) {
    const auto data = Synthetic();
    std::vector<RankRun> runs(static_cast<size_t>(world_size));
    RunRanks(world_size, [&](ProcessGroup& group) {
      const auto kernels = MakeCpuKernels(1);
      Arena arena("device memory", Arena::Kind::kReal, 0);
      Engine engine({model, group, *kernels, arena, data.get(), kSeqLen}, config, 7);
      if (load) engine.LoadCheckpoint(dir_);
      RankRun& run = runs[static_cast<size_t>(group.rank())];
      for (int step = 0; step < steps; ++step)
        run.steps.push_back(engine.TrainStep());
      if (save) engine.SaveCheckpoint(dir_, fmt::format("step_{}", engine.num_steps()));
      for (int u = 0; u < engine.states().num_units(); ++u) {
        run.params.push_back(AsFloats(*kernels, engine.states().ParamAtHome(u)));
      }
    });
    Result result = {WholeParams(model, runs), {}};
    for (const StepResult& step : runs[0].steps)
      result.losses.push_back(step.loss);
    return result;
  }

  ErrorCode LoadError(const Model& model, const DsConfig& config) {
    try {
      Run(model, config, 1, 0, true, false);
    } catch (const Error& e) {
      message_ = e.what();
      return e.code();
    }
    return ErrorCode::kUnknown;
  }

  std::string dir_;
  std::string message_;
};

TEST_F(CheckpointTest, AResumedRunIsTheUninterruptedOneBitForBit) {
  const Model model = TinyGpt2();
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool bf16 : {false, true}) {
      DsConfig config = TinyConfig(stage, 2, 1);
      config.bf16 = bf16;
      const Result whole = Run(model, config, 2, 4, false, false);
      Run(model, config, 2, 2, false, true);
      const Result resumed = Run(model, config, 2, 2, true, false);
      EXPECT_EQ(resumed.params, whole.params) << stage;
      EXPECT_EQ(resumed.losses[0], whole.losses[2]) << stage;
      EXPECT_EQ(resumed.losses[1], whole.losses[3]) << stage;
    }
  }
}

TEST_F(CheckpointTest, AnyNumberOfRanksAndAnyStageCanContinue) {
  const Model model = TinyGpt2();
  const Result saved = Run(model, TinyConfig(3, 4, 1), 4, 2, false, true);
  const Result next = Run(model, TinyConfig(3, 4, 1), 4, 1, true, false);
  for (const int world_size : {1, 2, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const DsConfig config = TinyConfig(stage, world_size, 1);
      EXPECT_EQ(Run(model, config, world_size, 0, true, false).params, saved.params);
      EXPECT_NEAR(Run(model, config, world_size, 1, true, false).losses[0], next.losses[0], 1e-5);
    }
  }
}

TEST_F(CheckpointTest, ATagIsReplacedWholeAndNothingElseIsLeft) {
  const Model model = TinyMlp();
  Run(model, TinyConfig(1, 2, 1), 2, 1, false, true);
  Run(model, TinyConfig(1, 2, 1), 2, 1, false, true);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir_))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("latest", "step_1"));
  names.clear();
  for (const auto& entry : fs::directory_iterator(dir_ + "/step_1")) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("manifest.json", "rank_00000.safetensors",
                                                   "rank_00001.safetensors"));
}

TEST_F(CheckpointTest, EveryElementIsSavedOnce) {
  const Model model = TinyGpt2();
  Run(model, TinyConfig(0, 4, 1), 4, 1, false, true);
  int64_t num_elems = 0;
  for (int rank = 0; rank < 4; ++rank) {
    SafetensorsFile file(fmt::format("{}/step_1/rank_{:05}.safetensors", dir_, rank));
    for (const auto& layer : model.layers) {
      for (const ParamSpec& spec : layer->params()) {
        const auto* entry = file.Find("param/" + spec.name);
        if (entry != nullptr) num_elems += entry->num_elems;
      }
    }
  }
  int64_t expected = 0;
  for (const auto& layer : model.layers) {
    for (const ParamSpec& spec : layer->params())
      expected += spec.NumElems();
  }
  EXPECT_EQ(num_elems, expected);
}

TEST_F(CheckpointTest, WhatDoesNotFitIsRefusedByName) {
  EXPECT_EQ(LoadError(TinyMlp(), TinyConfig(0, 1, 1)), ErrorCode::kNotFound);
  EXPECT_THAT(message_, testing::HasSubstr("latest"));
  Run(TinyMlp(), TinyConfig(0, 2, 1), 2, 1, false, true);
  EXPECT_EQ(LoadError(TinyGpt2(), TinyConfig(0, 1, 1)), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_, testing::HasSubstr("/parameters"));
  DsConfig config = TinyConfig(0, 1, 1);
  config.bf16 = true;
  EXPECT_EQ(LoadError(TinyMlp(), config), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_, testing::HasSubstr("/dtype"));
}

TEST_F(CheckpointTest, BrokenFilesAreFoundOut) {
  Run(TinyMlp(), TinyConfig(0, 2, 1), 2, 1, false, true);
  const std::string file = dir_ + "/step_1/rank_00001.safetensors";
  fs::resize_file(file, fs::file_size(file) - 4);
  EXPECT_EQ(LoadError(TinyMlp(), TinyConfig(0, 1, 1)), ErrorCode::kDataLoss);
  EXPECT_THAT(message_, testing::HasSubstr("rank_00001"));
  std::ofstream(file, std::ios::trunc) << "no";
  EXPECT_EQ(LoadError(TinyMlp(), TinyConfig(0, 1, 1)), ErrorCode::kDataLoss);
  fs::remove(file);
  EXPECT_EQ(LoadError(TinyMlp(), TinyConfig(0, 1, 1)), ErrorCode::kNotFound);
  // Half of the pieces are in a file that the manifest no longer names.
  Run(TinyMlp(), TinyConfig(0, 2, 1), 2, 1, false, true);
  Json manifest = ReadJsonFile(dir_ + "/step_1/manifest.json");
  manifest["world_size"] = 1;
  WriteJsonFile(dir_ + "/step_1/manifest.json", manifest);
  EXPECT_EQ(LoadError(TinyMlp(), TinyConfig(0, 1, 1)), ErrorCode::kDataLoss);
  EXPECT_THAT(message_, testing::HasSubstr("param/"));
}

TEST_F(CheckpointTest, AnOptimizerFindsItsOwnStateOrSaysSo) {
  DsConfig sgd = TinyConfig(0, 1, 1);
  sgd.optimizer.type = "sgd";
  Run(TinyMlp(), sgd, 1, 1, false, true);
  EXPECT_EQ(LoadError(TinyMlp(), TinyConfig(0, 1, 1)), ErrorCode::kDataLoss);
  EXPECT_THAT(message_, testing::HasSubstr("moment0/"));
}

TEST_F(CheckpointTest, AFolderThatCannotBeWrittenIsNamed) {
  std::ofstream(dir_) << "a file";
  EXPECT_THROW(Run(TinyMlp(), TinyConfig(0, 1, 1), 1, 1, false, true), Error);
}

}  // namespace
}  // namespace dsat::engine
