// Files of whole parameters: collated checkpoints, the model as it trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "base/files.h"
#include "engine/core/elements.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/files/collate.h"
#include "engine/files/crc32.h"
#include "engine/files/safetensors.h"
#include "tests/base/error_code.h"
#include "tests/engine/runtime/training.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(Crc32Test, IsTheStandardsAndCanBeContinued) {
  EXPECT_EQ(Crc32(0, "123456789"), 0xCBF43926U);  // The check value of IEEE 802.3's.
  EXPECT_EQ(Crc32(Crc32(0, "1234"), "56789"), 0xCBF43926U);
}

using Params = std::map<std::string, std::vector<float>>;  // By name.

// Adds those of a unit that is whole on one rank, where its values begin at `values`.
void AddParams(Params& params, const Model& model, int u, const float* values) {
  const Layer& layer = *model.layers[static_cast<size_t>(u)];
  const UnitLayout layout = LayoutOf(layer, 1);
  for (size_t i = 0; i < layer.params().size(); ++i) {
    const ParamSpec& spec = layer.params()[i];
    params[spec.name].assign(values + layout.offsets[i],
                             values + layout.offsets[i] + spec.NumElems());
  }
}

void CollateQuietly(const CollateOptions& options) {
  Collate(options, [](int64_t, int64_t) {});
}

class ExportTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / name; }
  std::string Checkpoint() const { return Path("checkpoint"); }

  // Trains two steps and saves; gives the f32 values of all parameters, by name.
  Params Train(const Model& model, const DsConfig& config, int world_size) const {
    OnEngines(model, config, world_size, [&](Engine& engine, ProcessGroup&) {
      engine.TrainBatch();
      engine.TrainBatch();
      engine.SaveCheckpoint(Checkpoint());
    });
    // On one rank all state is whole.
    Params values;
    DsConfig single = TinyConfig(0, 1, 1);
    single.bf16 = config.bf16;
    OnEngines(model, single, 1, [&](Engine& engine, ProcessGroup&) {
      engine.LoadCheckpoint(Checkpoint());
      UnitStates& states = EngineInternals(engine).states();
      const std::string state = config.bf16 ? "master" : "param";
      for (int u = 0; u < states.num_units(); ++u) {
        states.Visit(u, UnitStates::Access::kRead, [&](const StatePart& part) {
          if (part.state == state) AddParams(values, model, u, part.data.f32());
        });
      }
    });
    return values;
  }

  // The whole content of a safetensors file as f32.
  Params Read(const std::string& path, const std::vector<std::string>& names) const {
    Params values;
    SafetensorsFile file(path);
    for (const std::string& name : names) {
      const SafetensorsFile::Entry* entry = file.Find(name);
      if (entry == nullptr) continue;
      std::vector<float> raw(static_cast<size_t>(entry->num_elems)), floats(raw.size());
      const Tensor tensor{raw.data(), entry->num_elems, entry->dtype};
      file.Read(*entry, 0, tensor);
      ConvertElems({floats.data(), entry->num_elems, DType::kF32}, tensor);
      values[name] = floats;
    }
    return values;
  }

  std::string CollateError(CollateOptions options) const {
    if (options.dir.empty()) options.dir = Checkpoint();
    try {
      CollateQuietly(options);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  const TempFolder folder_;
};

std::vector<std::string> NamesOf(const Model& model) {
  std::vector<std::string> names;
  for (const auto& layer : model.layers) {
    for (const ParamSpec& spec : layer->params())
      names.push_back(spec.name);
  }
  return names;
}

TEST_F(ExportTest, ACollatedFileHasTheMastersOfAnyStageAndNumberOfRanks) {
  const Model model = TinyGpt2();
  for (const int world_size : {1, 2, 4}) {
    for (const int stage : {0, 1, 3}) {
      for (const bool bf16 : {false, true}) {
        DsConfig config = TinyConfig(stage, world_size, 1);
        config.bf16 = bf16;
        const auto expected = Train(model, config, world_size);
        int64_t last_done = 0, last_all = 0;
        const CollateResult result =
            Collate({.dir = Checkpoint(), .out = Path("model.safetensors"), .force = true},
                    [&](int64_t done, int64_t all) {
                      EXPECT_GT(done, last_done);
                      EXPECT_GE(all, done);
                      last_done = done;
                      last_all = all;
                    });
        EXPECT_EQ(last_done, last_all);
        EXPECT_EQ(result.tag, "global_step2");
        EXPECT_EQ(result.num_tensors, static_cast<int64_t>(expected.size()));
        EXPECT_EQ(Read(Path("model.safetensors"), NamesOf(model)), expected);
      }
    }
  }
}

TEST_F(ExportTest, EveryParameterIsInAFileOnceWithItsShape) {
  const Model model = TinyGpt2();
  Train(model, TinyConfig(2, 2, 1), 2);
  CollateQuietly({.dir = Checkpoint(), .out = Path("model.safetensors")});
  const std::string content = ReadFile(Path("model.safetensors"));
  const Json header = Json::parse(content.substr(8, content.find("}}") + 2 - 8));
  EXPECT_EQ(header.size(), NamesOf(model).size() + 1);
  EXPECT_EQ(header["h.0.attn.c_attn.weight"]["shape"], Json({24, 72}));
  EXPECT_EQ(header["wte.weight"]["shape"], Json({127, 24}));
  EXPECT_EQ(header["__metadata__"], Json({{"format", "pt"}}));
}

TEST_F(ExportTest, WhatCannotBeCollatedIsSaidByName) {
  const std::string out = Path("model.safetensors");
  EXPECT_THAT(CollateError({.out = out}), HasSubstr("/latest: no such file"));
  EXPECT_THAT(CollateError({.tag = "x", .out = out}), HasSubstr("/x/manifest.json: no such file"));
  Train(TinyMlp(), TinyConfig(1, 2, 1), 2);
  fs::rename(Checkpoint() + "/latest", Path("latest"));
  EXPECT_THAT(
      CollateError({.out = out}),
      testing::EndsWith("/latest: no such file; pass --tag global_step2, which is the newest "
                        "one"));
  fs::rename(Path("latest"), Checkpoint() + "/latest");
  EXPECT_THAT(CollateError({.out = Path("model.txt")}), HasSubstr("ends in .safetensors"));
  EXPECT_THAT(CollateError({.out = out, .dtype = "int8"}), HasSubstr("--dtype is \"int8\""));
  EXPECT_THAT(CollateError({.out = Path("none/model.safetensors")}), HasSubstr("No such file"));
  EXPECT_THAT(CollateError({.out = folder_.path()}), HasSubstr("is a folder"));
  std::ofstream(out) << "mine";
  EXPECT_THAT(CollateError({.out = out}), HasSubstr("--force replaces it"));
  const std::string rank_file = Checkpoint() + "/global_step2/rank_00001.safetensors";
  fs::resize_file(rank_file, fs::file_size(rank_file) - 1);
  EXPECT_THAT(CollateError({.out = out, .force = true}), HasSubstr("rank_00001.safetensors: "));
  EXPECT_EQ(ReadFile(out), "mine");
  fs::remove(rank_file);
  EXPECT_THAT(CollateError({.out = out, .force = true}), HasSubstr("no such file"));
  EXPECT_EQ(folder_.Names().size(), 2U);
}

TEST_F(ExportTest, APieceThatIsMissingIsNotFilledUp) {
  Train(TinyMlp(), TinyConfig(1, 2, 1), 2);
  const std::string folder = Checkpoint() + "/global_step2";
  CheckpointManifest manifest = ReadManifest(folder);
  manifest.files.erase(manifest.files.begin());
  WriteManifest(folder, manifest);
  EXPECT_THAT(CollateError({.out = Path("model.safetensors")}), HasSubstr(" elements of "));
  EXPECT_FALSE(fs::exists(Path("model.safetensors")));
}

TEST_F(ExportTest, AManifestWithoutTheStateOfTheEngineIsRefused) {
  Train(TinyMlp(), TinyConfig(0, 1, 1), 1);
  const std::string folder = Checkpoint() + "/global_step2";
  const CheckpointManifest manifest = ReadManifest(folder);
  const auto error_of = [&](const Json& patch) {
    CheckpointManifest crafted = manifest;
    crafted.engine.merge_patch(patch);
    WriteManifest(folder, crafted);
    return CollateError({.out = Path("model.safetensors")});
  };
  EXPECT_THAT(error_of({{"num_steps", nullptr}}),
              HasSubstr("manifest.json: not a whole manifest: /engine/num_steps is missing"));
  EXPECT_THAT(error_of({{"loss_scaler", {{"scale", "1"}}}}),
              HasSubstr("/engine/loss_scaler/scale is \"1\"; expected a number"));
  EXPECT_THAT(error_of({{"lr", true}}), HasSubstr("/engine/lr is true; expected a number"));
  EXPECT_THAT(error_of({{"loss_scaler", 1}}), HasSubstr("/engine/loss_scaler/scale is missing"));
  EXPECT_THAT(error_of({{"num_steps", -5}}),
              HasSubstr("/engine/num_steps is -5; expected an integer of 0 or more"));
  EXPECT_THAT(error_of({{"num_samples", std::numeric_limits<int64_t>::max()}}),
              HasSubstr("/engine/num_samples is 9223372036854775807; expected an integer"));
  EXPECT_THAT(error_of({{"lr", -1e300}}), HasSubstr("/engine/lr is -1e+300; expected a number"));
  EXPECT_THAT(error_of({{"train_batch_size", 0}}), HasSubstr("expected an integer of 1 or more"));
}

TEST_F(ExportTest, StoppingLeavesNothing) {
  Train(TinyMlp(), TinyConfig(0, 1, 1), 1);
  EXPECT_THROW(Collate({.dir = Checkpoint(), .out = Path("model.safetensors")},
                       [](int64_t done, int64_t all) {
                         if (2 * done > all) Throw(ErrorCode::kCancelled, "stop");
                       }),
               Error);
  EXPECT_EQ(folder_.Names().size(), 1U);
}

TEST_F(ExportTest, TheModelIsSavedAsItTrainsFromAnyStage) {
  Model model = TinyGpt2();
  for (const bool bf16 : {false, true}) {
    for (int stage = 0; stage <= 3; ++stage) {
      DsConfig config = TinyConfig(stage, 2, 1);
      config.bf16 = bf16;
      config.zero.gather_16bit_weights_on_model_save = true;
      config.zero.stage3_param_persistence_threshold = 100;  // Some units rest whole.
      OnEngines(model, config, 2, [&](Engine& engine, ProcessGroup&) {
        engine.TrainBatch();
        EXPECT_TRUE(engine.Save16BitModel(folder_.path(), "model.safetensors"));
        engine.SaveCheckpoint(Checkpoint());
        engine.TrainBatch();
      });
      // A rounded master is the parameter.
      CollateQuietly({.dir = Checkpoint(),
                      .out = Path("collated.safetensors"),
                      .dtype = bf16 ? "bf16" : "fp32",
                      .force = true});
      const auto names = NamesOf(model);
      const auto saved = Read(Path("model.safetensors"), names);
      EXPECT_EQ(saved.size(), names.size());
      EXPECT_EQ(saved, Read(Path("collated.safetensors"), names));
      SafetensorsFile file(Path("model.safetensors"));
      EXPECT_EQ(file.Find("wte.weight")->dtype, bf16 ? DType::kBF16 : DType::kF32);
    }
  }
}

TEST_F(ExportTest, PipelineStagesAndStateOnDiskComeTogetherInOneFile) {
  const Model model = TinyGpt2();
  DsConfig staged = TinyConfig(1, 2, 2);
  staged.pipeline.num_stages = 2;
  DsConfig swapped = TinyConfig(3, 4, 1);
  swapped.zero.gather_16bit_weights_on_model_save = true;
  swapped.zero.offload_param = {.tier = Tier::kNvme, .nvme_path = folder_.path(), .max_in_cpu = 0};
  for (const DsConfig& config : {staged, swapped}) {
    OnEngines(model, config, 4, [&](Engine& engine, ProcessGroup&) {
      engine.TrainBatch();
      EXPECT_TRUE(engine.Save16BitModel(folder_.path(), "model.safetensors"));
      engine.SaveCheckpoint(Checkpoint());
    });
    CollateQuietly({.dir = Checkpoint(), .out = Path("collated.safetensors"), .force = true});
    const auto saved = Read(Path("model.safetensors"), NamesOf(model));
    EXPECT_EQ(saved.size(), NamesOf(model).size());
    EXPECT_EQ(saved, Read(Path("collated.safetensors"), NamesOf(model)));
  }
}

TEST_F(ExportTest, ALlamaIsPublishedAsLinearsAndReadBack) {
  const Model model = TinyLlama();
  DsConfig config = TinyConfig(3, 2, 1);
  config.zero.gather_16bit_weights_on_model_save = true;
  const auto trained = Train(model, config, 2);
  const std::string path = Path("model.safetensors");
  CollateQuietly({.dir = Checkpoint(), .out = path});

  const std::string layer = "model.layers.1.";
  const auto linear = [&](const char* name) { return layer + name + ".weight"; };
  const std::vector<std::string> linears = {linear("self_attn.q_proj"), linear("self_attn.k_proj"),
                                            linear("self_attn.v_proj"), linear("self_attn.o_proj"),
                                            linear("mlp.gate_proj"),    linear("mlp.up_proj"),
                                            linear("mlp.down_proj")};
  const auto published = Read(path, linears);
  ASSERT_EQ(published.size(), linears.size());
  // Row `out` of a Linear is a column of the parameter that it is part of.
  const auto expect = [&](const char* part, const char* whole, size_t first_col) {
    const std::vector<float>& values = published.at(linear(part));
    const std::vector<float>& param = trained.at(linear(whole));
    const auto [in, cols] = [&] {
      for (const ParamSpec& spec : model.layers[2]->params()) {
        if (spec.name == linear(whole)) return std::pair(spec.shape[0], spec.shape[1]);
      }
      return std::pair<int64_t, int64_t>();
    }();
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t out = i / static_cast<size_t>(in), row = i % static_cast<size_t>(in);
      EXPECT_EQ(values[i], param.at(row * static_cast<size_t>(cols) + first_col + out)) << part;
    }
    return first_col + values.size() / static_cast<size_t>(in);
  };
  size_t next = expect("self_attn.q_proj", "self_attn.qkv_proj", 0);
  next = expect("self_attn.k_proj", "self_attn.qkv_proj", next);
  expect("self_attn.v_proj", "self_attn.qkv_proj", next);
  expect("mlp.up_proj", "mlp.gate_up_proj", expect("mlp.gate_proj", "mlp.gate_up_proj", 0));
  expect("mlp.down_proj", "mlp.down_proj", 0);

  Json from_file = TinyLlamaBlock();
  from_file["weights"] = path;
  OnEngines(MakeModel(from_file, "/model"), config, 2, [&](Engine& engine, ProcessGroup&) {
    engine.SaveCheckpoint(Path("again"));
    engine.Save16BitModel(folder_.path(), "saved.safetensors");
  });
  CollateQuietly({.dir = Path("again"), .out = Path("again.safetensors")});
  EXPECT_EQ(ReadFile(Path("again.safetensors")), ReadFile(path));
  EXPECT_EQ(Read(Path("saved.safetensors"), linears), published);
}

TEST_F(ExportTest, LargeLayersAreMovedInBlocks) {
  const Model model = MakeModel(
      {{"type", "mlp"}, {"embedding", 8}, {"hidden", {2048, 1500}}, {"vocab_size", 61}}, "/model");
  DsConfig config = TinyConfig(3, 2, 1);
  config.zero.gather_16bit_weights_on_model_save = true;
  Params expected;
  OnEngines(model, TinyConfig(0, 1, 1), 1, [&](Engine& engine, ProcessGroup&) {
    for (int u = 0; u < EngineInternals(engine).states().num_units(); ++u)
      AddParams(expected, model, u, ParamsHere(engine, u).data());
  });
  OnEngines(model, config, 2, [&](Engine& engine, ProcessGroup&) {
    engine.Save16BitModel(folder_.path(), "model.safetensors");
    engine.SaveCheckpoint(Checkpoint());
  });
  CollateQuietly({.dir = Checkpoint(), .out = Path("collated.safetensors")});
  EXPECT_EQ(Read(Path("model.safetensors"), NamesOf(model)), expected);
  EXPECT_EQ(Read(Path("collated.safetensors"), NamesOf(model)), expected);
}

TEST_F(ExportTest, ShardedParametersAreGatheredOnlyIfTheConfigSaysSo) {
  OnEngines(TinyMlp(), TinyConfig(3, 2, 1), 2, [&](Engine& engine, ProcessGroup&) {
    EXPECT_FALSE(engine.Save16BitModel(folder_.path()));
  });
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  OnEngines(TinyMlp(), TinyConfig(2, 2, 1), 2, [&](Engine& engine, ProcessGroup&) {
    EXPECT_TRUE(engine.Save16BitModel(folder_.path()));
  });
  EXPECT_TRUE(fs::exists(Path("model.safetensors")));
}

TEST_F(ExportTest, FrozenLayersCanBeLeftOut) {
  Model model = TinyMlp();
  model.frozen.assign(model.layers.size(), false);
  model.frozen[0] = true;
  OnEngines(model, TinyConfig(1, 2, 1), 2, [&](Engine& engine, ProcessGroup&) {
    engine.TrainBatch();
    engine.Save16BitModel(folder_.path(), "all.safetensors");
    engine.Save16BitModel(folder_.path(), "trained.safetensors", true);
  });
  SafetensorsFile all(Path("all.safetensors")), trained(Path("trained.safetensors"));
  for (size_t u = 0; u < model.layers.size(); ++u) {
    for (const ParamSpec& spec : model.layers[u]->params()) {
      EXPECT_NE(all.Find(spec.name), nullptr);
      EXPECT_EQ(trained.Find(spec.name) != nullptr, u != 0) << spec.name;
    }
  }
}

TEST_F(ExportTest, ASaveThatFailsOnRank0FailsOnAllAndTrainingGoesOn) {
  DsConfig config = TinyConfig(3, 2, 1);
  config.zero.gather_16bit_weights_on_model_save = true;
  std::ofstream(Path("file")) << "x";
  OnEngines(TinyMlp(), config, 2, [&](Engine& engine, ProcessGroup&) {
    EXPECT_THROW(engine.Save16BitModel(Path("file")), Error);
    EXPECT_THROW(engine.Save16BitModel(folder_.path(), "a/b.safetensors"), Error);
    EXPECT_THAT(ErrorOf([&] { engine.Save16BitModel(folder_.path(), "model.foo"); }).what(),
                testing::HasSubstr("model.foo: expected a name that ends in .safetensors"));
    engine.TrainBatch();
    EXPECT_TRUE(engine.Save16BitModel(folder_.path()));
  });
}

}  // namespace
}  // namespace dsat::engine
