// Checkpoints: what is loaded is what was saved, at any number of ranks; broken ones are refused.
#include "engine/runtime/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "base/json.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/files/safetensors.h"
#include "tests/base/error_code.h"
#include "tests/engine/backend/kernels_testing.h"
#include "tests/engine/runtime/training.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  struct Result {
    std::vector<float> params;
    std::vector<double> losses;
    std::vector<double> scales;
  };

  // Trains `steps` steps, from the newest checkpoint if `load`, and saves one at the end if `save`.
  Result Run(const Model& model, const DsConfig& config, int world_size, int steps, bool load,
             bool save) {
    std::vector<RankRun> runs(static_cast<size_t>(world_size));
    OnEngines(model, config, world_size, [&](Engine& engine, ProcessGroup& group) {
      if (load) engine.LoadCheckpoint(dir_);
      RankRun& run = runs[static_cast<size_t>(group.rank())];
      for (int step = 0; step < steps; ++step)
        run.steps.push_back(engine.TrainBatch());
      if (save) engine.SaveCheckpoint(dir_, fmt::format("step_{}", engine.num_steps()));
      run.params = ParamsHere(engine);
    });
    Result result = {WholeParams(model, runs, config), {}, {}};
    for (const StepResult& step : runs[0].steps) {
      result.losses.push_back(step.loss);
      result.scales.push_back(step.loss_scale);
    }
    return result;
  }

  // A load by one rank; the MLP is what most tests save.
  void ExpectLoads() { Run(TinyMlp(), TinyConfig(0, 1, 1), 1, 0, true, false); }
  void ExpectRefused(ErrorCode code, const testing::Matcher<std::string>& message,
                     const Model& model = TinyMlp(), const DsConfig& config = TinyConfig(0, 1, 1)) {
    const Error error = ErrorOf([&] { Run(model, config, 1, 0, true, false); });
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(std::string(error.what()), message);
  }

  const TempFolder folder_;
  const std::string dir_ = folder_ / "checkpoints";  // There is none yet.
};

// A scale that overflows at first and then goes up and down every few steps.
TEST_F(CheckpointTest, AResumedLossScaleIsTheUninterruptedOne) {
  const Model model = TinyGpt2();
  DsConfig config = TinyConfig(2, 2, 1);
  config.fp16 = {.enabled = true, .initial_scale_power = 40, .loss_scale_window = 2};
  const Result whole = Run(model, config, 2, 30, false, false);
  Run(model, config, 2, 15, false, true);
  const Result resumed = Run(model, config, 2, 15, true, false);
  EXPECT_EQ(resumed.params, whole.params);
  EXPECT_EQ(resumed.scales, std::vector<double>(whole.scales.begin() + 15, whole.scales.end()));
  EXPECT_LT(whole.scales[15], whole.scales[0]);
  EXPECT_NE(whole.scales[29], whole.scales[15]);
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

void SetBf16State(DsConfig& config, bool moments) {
  config.bf16 = config.bf16_master_weights_and_grads = true;
  config.bf16_optimizer_states = moments;
}

// Where state may rest beside a device, and in what: on two ranks.
struct Place {
  const char* name;
  int stage;
  void (*apply)(DsConfig&);
};

constexpr Place kPlaces[] = {
    {"optimizer on host", 1, [](DsConfig& c) { c.zero.offload_optimizer.tier = Tier::kHost; }},
    {"part of the optimizer on host", 3,
     [](DsConfig& c) {
       c.zero.offload_optimizer.tier = Tier::kHost;
       c.zero.offload_optimizer.ratio = 0.5;
     }},
    {"optimizer on disk", 2,
     [](DsConfig& c) {
       c.zero.offload_optimizer = {.tier = Tier::kNvme, .nvme_path = testing::TempDir()};
       c.zero.sub_group_size = 1000;
     }},
    {"everything on disk", 3,
     [](DsConfig& c) {
       c.zero.offload_optimizer = {.tier = Tier::kNvme, .nvme_path = testing::TempDir()};
       c.zero.offload_param = {.tier = Tier::kNvme, .nvme_path = testing::TempDir()};
       c.zero.offload_param.max_in_cpu = 3000;
     }},
    {"bf16 state", 3, [](DsConfig& c) { SetBf16State(c, true); }},
    {"bf16 master copy on disk", 1,
     [](DsConfig& c) {
       SetBf16State(c, false);
       c.zero.offload_optimizer = {.tier = Tier::kNvme, .nvme_path = testing::TempDir()};
       c.zero.sub_group_size = 1001;
     }},
    {"rounded at random", 2, [](DsConfig& c) { c.optimizer.stochastic_rounding = true; }},
    {"two pipeline stages", 0, [](DsConfig& c) { c.pipeline.num_stages = 2; }},
    {"two pipeline stages, optimizer on host", 1,
     [](DsConfig& c) {
       c.pipeline.num_stages = 2;
       c.zero.offload_optimizer.tier = Tier::kHost;
     }},
};

DsConfig ConfigAt(const Place& place) {
  DsConfig config = TinyConfig(place.stage, 2, 1);
  config.bf16 = true;
  place.apply(config);
  if (config.pipeline.num_stages == 2) config.batch.micro_batch_size = 12;
  return config;
}

TEST_F(CheckpointTest, AResumedRunIsTheUninterruptedOneBitForBitWhereverStateIs) {
  const Model model = TinyGpt2();
  std::vector<std::pair<std::string, DsConfig>> configs;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool bf16 : {false, true}) {
      configs.emplace_back(fmt::format("stage {}, bf16 {}", stage, bf16), TinyConfig(stage, 2, 1));
      configs.back().second.bf16 = bf16;
    }
  }
  for (const Place& place : kPlaces)
    configs.emplace_back(place.name, ConfigAt(place));
  for (const auto& [name, config] : configs) {
    SCOPED_TRACE(name);
    const Result whole = Run(model, config, 2, 4, false, false);
    Run(model, config, 2, 2, false, true);
    const Result resumed = Run(model, config, 2, 2, true, false);
    EXPECT_EQ(resumed.params, whole.params);
    EXPECT_EQ(resumed.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
  }
}

TEST_F(CheckpointTest, EachPlaceContinuesWhatAnotherHasSaved) {
  const Model model = TinyGpt2();
  for (const Place& from : kPlaces) {
    const Result saved = Run(model, ConfigAt(from), 2, 2, false, true);
    const Result next = Run(model, ConfigAt(from), 2, 1, true, false);
    for (const Place& to : kPlaces) {
      SCOPED_TRACE(fmt::format("from {} to {}", from.name, to.name));
      EXPECT_EQ(Run(model, ConfigAt(to), 2, 0, true, false).params, saved.params);
      EXPECT_NEAR(Run(model, ConfigAt(to), 2, 1, true, false).losses[0], next.losses[0], 1e-3);
    }
  }
}

// The state of a parameter in a checkpoint of one rank.
TestTensor Saved(const std::string& dir, const std::string& name) {
  const SafetensorsFile file(dir + "/saved/rank_00000.safetensors");
  const SafetensorsFile::Entry& entry = *file.Find(name);
  TestTensor tensor = TestTensor::Zeros(entry.dtype, entry.num_elems);
  file.Read(entry, 0, tensor.get());
  return tensor;
}

// To bf16 by rounding, to f32 exactly; and what the model computes is the same.
TEST_F(CheckpointTest, StateInAnotherTypeIsConverted) {
  const Model model = TinyMlp();
  const std::string name = model.layers[0]->params()[0].name;
  DsConfig f32 = TinyConfig(1, 1, 1), bf16 = f32;
  f32.bf16 = true;
  SetBf16State(bf16, true);
  for (const bool to_bf16 : {true, false}) {
    const std::string from = dir_ + (to_bf16 ? "/a" : "/b"), to = from + "_converted";
    OnEngines(model, to_bf16 ? f32 : bf16, 1, [&](Engine& engine, ProcessGroup&) {
      for (int step = 0; step < 3; ++step)
        engine.TrainBatch();
      engine.SaveCheckpoint(from, "saved");
    });
    OnEngines(model, to_bf16 ? bf16 : f32, 1, [&](Engine& next, ProcessGroup&) {
      next.LoadCheckpoint(from);
      next.SaveCheckpoint(to, "saved");
    });
    EXPECT_EQ(Saved(to, "param/" + name).bytes(), Saved(from, "param/" + name).bytes());
    for (const std::string moment : {"moment0/", "moment1/"}) {
      const DType dtype = to_bf16 ? DType::kBF16 : DType::kF32;
      const TestTensor expected(dtype, Saved(from, moment + name).Values());
      EXPECT_EQ(Saved(to, moment + name).bytes(), expected.bytes());
    }
    const std::string without = to_bf16 ? to : from, with = to_bf16 ? from : to;
    EXPECT_EQ(SafetensorsFile(without + "/saved/rank_00000.safetensors").Find("master/" + name),
              nullptr);
    if (to_bf16) continue;
    EXPECT_EQ(Saved(with, "master/" + name).Values(), Saved(without, "param/" + name).Values());
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
  EXPECT_THAT(names, testing::UnorderedElementsAre("manifest.json", "rank_00000.1.safetensors",
                                                   "rank_00001.1.safetensors"));
  ExpectLoads();
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
  ExpectRefused(ErrorCode::kNotFound, HasSubstr("latest"));
  Run(TinyMlp(), TinyConfig(0, 2, 1), 2, 1, false, true);
  ExpectRefused(ErrorCode::kInvalidArgument, HasSubstr("/parameters"), TinyGpt2());
  DsConfig config = TinyConfig(0, 1, 1);
  config.bf16 = true;
  ExpectRefused(ErrorCode::kInvalidArgument, HasSubstr("/dtype"), TinyMlp(), config);
}

TEST_F(CheckpointTest, BrokenFilesAreFoundOut) {
  Run(TinyMlp(), TinyConfig(0, 2, 1), 2, 1, false, true);
  const std::string file = dir_ + "/step_1/rank_00001.safetensors";
  fs::resize_file(file, fs::file_size(file) - 4);
  ExpectRefused(ErrorCode::kDataLoss, HasSubstr("rank_00001"));
  std::ofstream(file, std::ios::trunc) << "no";
  ExpectRefused(ErrorCode::kDataLoss, HasSubstr("rank_00001"));
  fs::remove(file);
  ExpectRefused(ErrorCode::kNotFound, HasSubstr("rank_00001"));
  // Half of the pieces are in a file that the manifest does not name.
  Run(TinyMlp(), TinyConfig(0, 2, 1), 2, 1, false, true);
  CheckpointManifest manifest = ReadManifest(dir_ + "/step_1");
  manifest.files.pop_back();
  WriteManifest(dir_ + "/step_1", manifest);
  ExpectRefused(ErrorCode::kInvalidArgument, HasSubstr("param/"));
}

TEST_F(CheckpointTest, TheErrorOfABrokenCheckpointNamesAnotherOne) {
  for (int i = 0; i < 2; ++i)
    Run(TinyMlp(), TinyConfig(0, 1, 1), 1, 1, /*load=*/i > 0, true);
  const auto expect_way_out = [&](ErrorCode code) {
    ExpectRefused(code, HasSubstr("; the newest other one is step_1: pass --tag step_"));
  };
  std::ofstream(dir_ + "/step_2/rank_00000.safetensors", std::ios::trunc) << "no";
  expect_way_out(ErrorCode::kDataLoss);
  fs::resize_file(dir_ + "/step_2/manifest.json", 1);
  expect_way_out(ErrorCode::kDataLoss);
  fs::remove(dir_ + "/step_2/manifest.json");
  expect_way_out(ErrorCode::kNotFound);
  WriteFileAtomic(dir_ + "/latest", "step_1\n");
  ExpectLoads();
}

TEST_F(CheckpointTest, SizesThatNoFileHasAreFoundOut) {
  Run(TinyMlp(), TinyConfig(0, 1, 1), 1, 1, false, true);
  const std::string folder = dir_ + "/step_1";
  const CheckpointManifest manifest = ReadManifest(folder);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{-4, -4}, {int64_t{1} << 32, int64_t{1} << 32}}) {
    CheckpointManifest crafted = manifest;
    crafted.parameters.begin()->second = shape;
    WriteManifest(folder, crafted);
    ExpectRefused(ErrorCode::kDataLoss, HasSubstr("expected a shape"));
  }
  CheckpointManifest crafted = manifest;
  crafted.files[0].name = "../../other.safetensors";
  WriteManifest(folder, crafted);
  ExpectRefused(ErrorCode::kDataLoss, HasSubstr("expected rank_00000.safetensors"));
  for (const std::string offsets : {"[0, 9223372036854775807]", "[-8, 0]"}) {
    const std::string header =
        R"({"x": {"dtype": "F32", "shape": [2], "data_offsets": )" + offsets + "}}";
    const uint64_t size = header.size();
    std::ofstream(dir_ + "/x.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&size), sizeof(size)) << header;
    EXPECT_THROW(SafetensorsFile(dir_ + "/x.safetensors"), Error) << offsets;
  }
}

// Flips one bit of a file.
void Flip(const std::string& path, int64_t byte, int bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(byte);
  const int old = file.peek();
  file.seekp(byte);
  file.put(static_cast<char>(old ^ (1 << bit)));
}

TEST_F(CheckpointTest, ABitFlipInARankFileIsFoundAndBothSumsAreNamed) {
  Run(TinyMlp(), TinyConfig(0, 2, 1), 2, 1, false, true);
  const CheckpointFile file = ReadManifest(dir_ + "/step_1").files[1];
  const std::string path = dir_ + "/step_1/" + file.name;
  for (const int64_t byte : {int64_t{0}, int64_t{20}, file.bytes / 2, file.bytes - 1}) {
    Flip(path, byte, 3);
    SCOPED_TRACE(byte);
    ExpectRefused(ErrorCode::kDataLoss,
                  testing::AllOf(HasSubstr(path),
                                 HasSubstr(fmt::format("manifest.json says {:08x}", file.crc32)),
                                 testing::ContainsRegex("has CRC-32 [0-9a-f]{8}")));
    Flip(path, byte, 3);
  }
  ExpectLoads();
}

TEST_F(CheckpointTest, EveryBitFlipInTheManifestIsFound) {
  Run(TinyMlp(), TinyConfig(0, 1, 1), 1, 1, false, true);
  const std::string folder = dir_ + "/step_1", path = folder + "/manifest.json";
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  for (int64_t bit = 0; bit < 8 * bytes; ++bit) {
    Flip(path, bit / 8, static_cast<int>(bit % 8));
    EXPECT_THROW(ReadManifest(folder), Error) << "bit " << bit;
    Flip(path, bit / 8, static_cast<int>(bit % 8));
  }
  EXPECT_EQ(ReadManifest(folder).files.size(), 1U);
}

TEST_F(CheckpointTest, ASaveBesideTrainingIsTheStateWhereItBegan) {
  const Model model = TinyGpt2();
  const DsConfig config = TinyConfig(2, 2, 1);
  OnEngines(model, config, 2, [&](Engine& engine, ProcessGroup&) {
    engine.TrainBatch();
    engine.SaveCheckpoint(dir_, "before");
    auto save = engine.BeginCheckpoint(dir_, "beside");
    const double loss = engine.TrainBatch().loss;
    EXPECT_EQ(ReadFile(dir_ + "/latest"), "before");
    while (!save->Finish(/*wait=*/false))
      engine.TrainBatch();
    engine.LoadCheckpoint(dir_);
    EXPECT_EQ(engine.num_steps(), 1);
    EXPECT_EQ(engine.TrainBatch().loss, loss);
    engine.BeginCheckpoint(dir_, "given up");
    EXPECT_EQ(ReadFile(dir_ + "/latest"), "beside");
  });
  EXPECT_FALSE(fs::exists(dir_ + "/given up/manifest.json"));
}

TEST_F(CheckpointTest, WhatTheCallerKeepsComesBack) {
  const Model model = TinyMlp();
  const Json kept = {{"epoch", 3}, {"best", 0.1}, {"names", {"a", "\u00e9"}}, {"none", nullptr}};
  OnEngines(model, TinyConfig(1, 2, 1), 2, [&](Engine& engine, ProcessGroup&) {
    engine.TrainBatch();
    engine.SaveCheckpoint(dir_, "", kept);
    engine.SaveCheckpoint(dir_, "nothing kept");
    EXPECT_EQ(engine.LoadCheckpoint(dir_, "global_step1"), kept);
    EXPECT_EQ(engine.LoadCheckpoint(dir_), Json::object());
    EXPECT_EQ(engine.num_steps(), 1);
    EXPECT_THROW(engine.SaveCheckpoint(dir_, "bad", {{"text", "\xff"}}), Error);
  });
  EXPECT_EQ(ReadFile(dir_ + "/latest"), "nothing kept");
  std::ofstream(dir_ + "/latest") << "global_step1\r\n";  // As an editor may leave it.
  EXPECT_EQ(ResolveTag(dir_, ""), "global_step1");
}

TEST_F(CheckpointTest, ATagThatIsNoFolderNameIsRefused) {
  for (const std::string tag : {"a/b", "..", ".hidden", "latest", "new\nline", "/"}) {
    EXPECT_THROW(CheckTag(tag), Error) << tag;
  }
  EXPECT_THROW(CheckTag(""), Error);
  EXPECT_THROW(CheckTag(std::string(201, 'x')), Error);
  CheckTag("global_step1000 (best)");
}

TEST_F(CheckpointTest, RanksThatDisagreeOnTheTagAllLearnIt) {
  const Model model = TinyMlp();
  OnEngines(model, TinyConfig(1, 2, 1), 2, [&](Engine& engine, ProcessGroup& group) {
    EXPECT_THROW(engine.SaveCheckpoint(dir_, fmt::format("tag{}", group.rank())), Error);
    EXPECT_THROW(engine.SaveCheckpoint(dir_, "a/b"), Error);
    EXPECT_FALSE(fs::exists(dir_));
    EXPECT_THROW(engine.LoadCheckpoint(dir_), Error);
    engine.TrainBatch();  // The group is whole.
    engine.SaveCheckpoint(dir_);
  });
  EXPECT_EQ(ReadFile(dir_ + "/latest"), "global_step1");
}

TEST_F(CheckpointTest, OnlyWhatUnfinishedSavesHaveLeftIsRemoved) {
  const std::vector<std::string> leftovers = {
      "half/rank_00000.safetensors", "half/rank_00001.safetensors.tmp.123.0",
      "step_1/rank_00000.1.safetensors", "step_1/manifest.json.tmp.123.0", "latest.tmp.123.0"};
  const std::vector<std::string> others = {"half of it/rank_00000.safetensors",
                                           "half of it/notes.txt",
                                           "mine/rank_0.txt",
                                           "step_1/notes.txt",
                                           "odd/rank_00000.safetensors",
                                           "odd/manifest.json"};
  Run(TinyMlp(), TinyConfig(0, 1, 1), 1, 1, false, true);
  for (const auto& names : {leftovers, others}) {
    for (const std::string& name : names) {
      fs::create_directories(fs::path(dir_ + "/" + name).parent_path());
      std::ofstream(dir_ + "/" + name) << "x";
    }
  }
  Run(TinyMlp(), TinyConfig(0, 1, 1), 1, 2, false, true);
  for (const std::string& name : leftovers)
    EXPECT_FALSE(fs::exists(dir_ + "/" + name)) << name;
  EXPECT_FALSE(fs::exists(dir_ + "/half"));
  EXPECT_TRUE(fs::exists(dir_ + "/step_1/rank_00000.safetensors"));
  for (const std::string& name : others)
    EXPECT_EQ(fs::exists(dir_ + "/" + name), name != others[0]) << name;
}

TEST_F(CheckpointTest, AnOptimizerFindsItsOwnStateOrSaysSo) {
  DsConfig sgd = TinyConfig(0, 1, 1);
  sgd.optimizer.type = "sgd";
  Run(TinyMlp(), sgd, 1, 1, false, true);
  ExpectRefused(ErrorCode::kInvalidArgument,
                HasSubstr("/engine/optimizer is sgd; the config has adamw"));
}

TEST_F(CheckpointTest, AFolderThatCannotBeWrittenIsNamed) {
  std::ofstream(dir_) << "a file";
  EXPECT_THROW(Run(TinyMlp(), TinyConfig(0, 1, 1), 1, 1, false, true), Error);
}

}  // namespace
}  // namespace dsat::engine
