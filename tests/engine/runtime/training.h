// Short real trainings for tests: ranks are threads, each with an engine, kernels and an arena.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/backend/stream.h"
#include "engine/data/dataset.h"
#include "engine/model/models.h"
#include "engine/plan/plan.h"
#include "engine/runtime/engine_internals.h"
#include "engine/runtime/executor/batch_loader.h"
#include "engine/runtime/plan_for.h"
#include "engine/runtime/predict.h"
#include "engine/runtime/state/unit_state.h"
#include "tests/engine/backend/test_device.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {

constexpr int64_t kSeqLen = 16;

inline Model Gpt2(int n_layer, int n_embd, int vocab_size, const Json& frozen = Json::array()) {
  Json json = {{"type", "gpt2"}, {"n_layer", n_layer},     {"n_embd", n_embd},
               {"n_head", 2},    {"n_positions", kSeqLen}, {"vocab_size", vocab_size}};
  if (!frozen.empty()) json["frozen"] = frozen;
  return MakeModel(json, "/model");
}

// Tied embeddings with a padded vocabulary, a unit of small parameters, sizes that do not divide by
// the ranks.
inline Model TinyGpt2() {
  return Gpt2(2, 24, 127);
}

// Grouped queries, an output embedding of its own, with a padded vocabulary.
inline Json TinyLlamaBlock() {
  return {{"type", "llama"},
          {"num_hidden_layers", 2},
          {"hidden_size", 24},
          {"intermediate_size", 40},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 16},
          {"vocab_size", 127}};
}

inline Model TinyLlama() {
  return MakeModel(TinyLlamaBlock(), "/model");
}

inline Model TinyResnet() {
  return MakeModel(
      {{"type", "resnet"}, {"depth", 8}, {"width", 8}, {"image_size", 8}, {"classes", 5}},
      "/model");
}

inline Model TinyMlp() {
  return MakeModel(
      {{"type", "mlp"}, {"context", 3}, {"embedding", 8}, {"hidden", {40, 24}}, {"vocab_size", 61}},
      "/model");
}

// The length of sequences in batches of the model: images are sequences of one.
inline int64_t SeqLenOf(const Model& model) {
  return model.image.NumElems() > 0 ? 1 : kSeqLen;
}

// All elements of parameters, with the padding to equal shares of the ranks.
inline int64_t PaddedElems(const Model& model, int world_size) {
  int64_t sum = 0;
  for (const auto& layer : model.layers)
    sum += LayoutOf(*layer, world_size).num_elems;
  return sum;
}

// The prediction for a rank of `world_size`.
inline Prediction Predicted(const Model& model, const DsConfig& config, int world_size,
                            int rank = 0) {
  return Predict(model, config, SeqLenOf(model), rank, world_size, 1);
}

// Micro-batches of 12 / (world_size * accumulation_steps) samples: the same 12 samples every way.
inline DsConfig TinyConfig(int stage, int world_size, int64_t accumulation_steps) {
  DsConfig config;
  config.batch = {.train_batch_size = 12,
                  .micro_batch_size = 12 / (world_size * accumulation_steps),
                  .accumulation_steps = accumulation_steps};
  config.gradient_clipping = 0;
  config.zero.stage = stage;
  config.zero.stage3_param_persistence_threshold = 0;
  config.zero.stage3_prefetch_bucket_size = 0;
  config.zero.stage3_max_reuse_distance = 0;
  return config;
}

// The first step of f16 overflows and is skipped, and so are more the more ranks are summed over.
inline void SetPrecision(DsConfig& config, DType dtype) {
  config.bf16 = dtype == DType::kBF16;
  config.fp16 = {.enabled = dtype == DType::kF16, .initial_scale_power = 19, .hysteresis = 1};
}

// So many that the last two update.
inline int NumStepsFor(const DsConfig& config) {
  return config.fp16.enabled ? 6 : 2;
}

// The results that one rank of a training saw.
struct RankRun {
  std::vector<StepResult> steps;
  std::vector<std::vector<float>> params;  // Per unit; whole, or this rank's slice.
  // The traffic and the peaks of the last step.
  Traffic step_traffic;
  TierTraffic tier_traffic;
  AioTraffic disk_traffic;
  int64_t host_peak_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t state_bytes = 0;  // Between steps.
  int64_t skipped = 0;
};

// A character a step: x if it was skipped.
inline std::string Skips(const RankRun& run) {
  std::string skips;
  for (const StepResult& step : run.steps)
    skips += step.skipped ? 'x' : '.';
  return skips;
}

inline std::vector<float> AsFloats(Kernels& kernels, const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elems));
  kernels.Run(op::Cast{{values.data(), tensor.num_elems, DType::kF32}, tensor});
  return values;
}

// A unit's parameters as they rest on this rank: whole, or its slice.
inline std::vector<float> ParamsHere(Engine& engine, int u) {
  UnitStates& states = EngineInternals(engine).states();
  std::vector<float> params;
  states.Visit(u, UnitStates::Access::kRead, [&](const StatePart& part) {
    if (part.state != "param") return;
    const std::vector<float> values = AsFloats(states.memory().host_kernels, part.data);
    params.insert(params.end(), values.begin(), values.end());
  });
  return params;
}

// The parameters of all units.
inline std::vector<std::vector<float>> ParamsHere(Engine& engine) {
  std::vector<std::vector<float>> params;
  for (int u = 0; u < EngineInternals(engine).states().num_units(); ++u)
    params.push_back(ParamsHere(engine, u));
  return params;
}

inline RankRun RunRank(const Model& model, const DsConfig& config, int num_steps,
                       const Dataset& data, ProcessGroup& group) {
  TestDevice device(group);
  TierMemory& memory = device.memory();
  const Kernels& kernels = memory.kernels();
  Engine engine(device.For(model, &data, SeqLenOf(model)), config, 7);
  RankRun run;
  for (int step = 0; step < num_steps; ++step) {
    memory.device().ResetPeak();
    memory.host().ResetPeak();
    const Traffic sent = engine.traffic();
    const TierTraffic tiers = kernels.stream().tier_traffic();
    const AioTraffic disk = EngineInternals(engine).states().disk_traffic();
    run.steps.push_back(engine.TrainBatch());
    run.step_traffic = engine.traffic() - sent;
    run.tier_traffic = kernels.stream().tier_traffic() - tiers;
    run.disk_traffic = EngineInternals(engine).states().disk_traffic() - disk;
    run.peak_bytes = memory.device().peak_bytes();
    run.host_peak_bytes = memory.host().peak_bytes();
  }
  run.state_bytes = memory.device().live_bytes();
  run.skipped = engine.num_skipped_steps();
  run.params = ParamsHere(engine);
  return run;
}

inline std::unique_ptr<Dataset> Synthetic() {
  return OpenDataset({{"type", "synthetic"}, {"seq_len", kSeqLen}, {"vocab_size", 61}}, "", 3,
                     "/data");
}

// Tokens, or images if the model takes them.
inline std::unique_ptr<Dataset> SyntheticFor(const Model& model) {
  if (model.image.NumElems() == 0) return Synthetic();
  return OpenDataset({{"type", "synthetic_images"},
                      {"image_size", model.image.height},
                      {"channels", model.image.channels},
                      {"classes", model.vocab_size}},
                     "", 3, "/data");
}

// Runs fn(engine, group) on every rank of `world_size`, each with an engine on synthetic data.
inline void OnEngines(const Model& model, const DsConfig& config, int world_size,
                      const std::function<void(Engine& engine, ProcessGroup& group)>& fn) {
  const auto data = SyntheticFor(model);
  RunRanks(world_size, [&](ProcessGroup& group) {
    TestDevice device(group);
    Engine engine(device.For(model, data.get(), SeqLenOf(model)), config, 7);
    fn(engine, group);
  });
}

// Trains on `world_size` ranks.
inline std::vector<RankRun> Train(const Model& model, const DsConfig& config, int world_size,
                                  int num_steps) {
  const auto data = SyntheticFor(model);
  std::vector<RankRun> runs(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](ProcessGroup& group) {
    runs[static_cast<size_t>(group.rank())] = RunRank(model, config, num_steps, *data, group);
  });
  return runs;
}

// All parameters, unit after unit, without padding: comparable between any two trainings.
inline std::vector<float> WholeParams(const Model& model, const std::vector<RankRun>& runs,
                                      const DsConfig& config = {}) {
  const auto world_size = static_cast<int>(runs.size());
  const int num_data = world_size / config.pipeline.num_stages;
  std::vector<float> all;
  for (size_t u = 0; u < model.layers.size(); ++u) {
    const UnitLayout layout = LayoutOf(*model.layers[u], num_data);
    std::vector<float> unit;
    for (const RankRun& run : runs) {
      const bool whole = std::ssize(unit) == layout.num_elems;
      if (!whole) unit.insert(unit.end(), run.params[u].begin(), run.params[u].end());
    }
    for (size_t i = 0; i < layout.offsets.size(); ++i) {
      const auto begin = unit.begin() + layout.offsets[i];
      all.insert(all.end(), begin, begin + model.layers[u]->params()[i].NumElems());
    }
  }
  return all;
}

}  // namespace dsat::engine
