// Pipelines train as one stage does, whatever the partition, the ranks and the settings beside.
#include "engine/runtime/executor/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"
#include "engine/files/safetensors.h"
#include "tests/engine/backend/relative_distance.h"
#include "tests/engine/runtime/expect_predicted.h"
#include "tests/engine/runtime/expect_same_bits.h"

namespace dsat::engine {
namespace {

// Five layers: embedding, three blocks, the head, which borrows the embedding.
Model ThreeBlocks() {
  return Gpt2(3, 24, 61);
}

TEST(PartitionTest, LayersAreDividedByNumberByParametersOrByName) {
  const Model model = ThreeBlocks();
  using testing::ElementsAre;
  EXPECT_THAT(PartitionLayers(model, 1, "best", "x"), ElementsAre(0, 5));
  EXPECT_THAT(PartitionLayers(model, 2, "uniform", "x"), ElementsAre(0, 3, 5));
  EXPECT_THAT(PartitionLayers(model, 5, "uniform", "x"), ElementsAre(0, 1, 2, 3, 4, 5));
  // 1848, then 7224 in each block, then 48: the heaviest stage has two blocks at least.
  EXPECT_THAT(PartitionLayers(model, 2, "parameters", "x"), ElementsAre(0, 2, 5));
  EXPECT_THAT(PartitionLayers(model, 3, "best", "x"), ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(PartitionLayers(model, 3, "type:^H\\.", "x"), ElementsAre(0, 2, 3, 5));
}

// As DeepSpeed divides them; the last stage is not left with what is over.
TEST(PartitionTest, UniformStagesDifferByAtMostOneLayer) {
  const auto begins = [](int num_layers, int num_stages) {
    const Model model = MakeModel({{"type", "mlp"},
                                   {"context", 1},
                                   {"embedding", 4},
                                   {"hidden", std::vector<int>(num_layers - 2, 4)},
                                   {"vocab_size", 8}},
                                  "/model");
    return PartitionLayers(model, num_stages, "uniform", "x");
  };
  using testing::ElementsAre;
  EXPECT_THAT(begins(7, 3), ElementsAre(0, 3, 5, 7));
  EXPECT_THAT(begins(10, 4), ElementsAre(0, 3, 6, 8, 10));
  EXPECT_THAT(begins(12, 4), ElementsAre(0, 3, 6, 9, 12));
}

// Over all ways to cut, none has a lighter heaviest stage, or, if that is equal, a heavier lightest
// one. Where layers are equal, this is what DeepSpeed's partition_balanced does, too.
TEST(PartitionTest, TheHeaviestStageIsAsLightAsCanBeAndThenTheLightestAsHeavy) {
  Rng rng(1, 0, "partition");
  for (int round = 0; round < 50; ++round) {
    std::vector<int> hidden(6);
    for (int& size : hidden)
      size = round == 0 ? 16 : 1 + static_cast<int>(rng.Below(40));
    const Model model = MakeModel({{"type", "mlp"},
                                   {"context", 1},
                                   {"embedding", 16},
                                   {"hidden", hidden},
                                   {"vocab_size", 16}},
                                  "/model");
    std::vector<int64_t> weights;
    for (const auto& layer : model.layers)
      weights.push_back(NumParams(*layer));
    const auto rank = [&](const std::vector<int>& begins) {
      std::vector<int64_t> sums;
      for (size_t s = 0; s + 1 < begins.size(); ++s)
        sums.push_back(std::accumulate(weights.begin() + begins[s], weights.begin() + begins[s + 1],
                                       int64_t{0}));
      return std::pair(-std::ranges::max(sums), std::ranges::min(sums));
    };
    const int num_layers = static_cast<int>(weights.size());
    auto best = rank({0, 1, 2, num_layers});
    for (int a = 1; a < num_layers - 1; ++a) {
      for (int b = a + 1; b < num_layers; ++b)
        best = std::max(best, rank({0, a, b, num_layers}));
    }
    EXPECT_EQ(rank(PartitionLayers(model, 3, "parameters", "x")), best) << round;
  }
}

TEST(PartitionTest, WhatCannotBeDividedIsRefusedByName) {
  const Model model = ThreeBlocks();
  const auto message = [&](int num_stages, const std::string& method) -> std::string {
    try {
      PartitionLayers(model, num_stages, method, "ds_config: /pipeline/partition");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(message(6, "uniform"), testing::HasSubstr("5 layers; expected at least 6"));
  EXPECT_THAT(message(2, "profile"), testing::HasSubstr("expected \"uniform\""));
  EXPECT_THAT(message(2, "type:mamba"), testing::HasSubstr("no layer's name matches"));
  EXPECT_THAT(message(2, "type:("), testing::HasSubstr("regular expression"));
}

DsConfig PipelineConfig(int stage, int num_stages, int num_data, int64_t accumulation_steps) {
  DsConfig config = TinyConfig(stage, num_data, accumulation_steps);
  config.pipeline.num_stages = num_stages;
  config.gradient_clipping = 0.5;
  return config;
}

struct Case {
  int num_stages;
  int num_data;
  int64_t accumulation_steps;
};

constexpr Case kCases[] = {{2, 1, 1}, {2, 1, 4}, {3, 1, 3}, {2, 2, 3}, {3, 2, 2}, {5, 1, 6}};
constexpr DType kPrecisions[] = {DType::kF32, DType::kBF16, DType::kF16};

// The gradient of the tied embedding is summed in another order than on one rank, so the bits
// differ there.
void ExpectStagesTrainAsOne(const Model& model, DsConfig config, double tolerance) {
  config.optimizer.type = "sgd";
  config.optimizer.lr = 0.1;
  DsConfig plain = config;
  plain.pipeline = {};
  const int num_data =
      static_cast<int>(config.batch.train_batch_size / config.batch.micro_batch_size /
                       config.batch.accumulation_steps);
  const int num_steps = NumStepsFor(config) + 1;
  const auto expected = Train(model, plain, num_data, num_steps);
  const auto runs = Train(model, config, config.pipeline.num_stages * num_data, num_steps);
  EXPECT_LT(RelativeDistance(WholeParams(model, runs, config), WholeParams(model, expected, plain)),
            tolerance);
  EXPECT_EQ(expected[0].steps[0].skipped, config.fp16.enabled);
  ExpectSkips(runs, Skips(expected[0]));
  ExpectPredicted(model, config, runs);
  for (size_t step = 0; step < expected[0].steps.size(); ++step) {
    const StepResult& one = expected[0].steps[step];
    for (const RankRun& run : runs) {
      EXPECT_NEAR(run.steps[step].loss, one.loss, tolerance);
      if (one.skipped) continue;
      EXPECT_NEAR(run.steps[step].grad_norm, one.grad_norm, tolerance);
    }
  }
}

TEST(PipelineTest, StagesTrainAsOneDoesAndMoveWhatWasPredicted) {
  const Model model = ThreeBlocks();
  // The tolerance of f16 is half of the rounding of one sum; which sums are rounded depends on the
  // processor.
  const auto tolerance = [](DType dtype) {
    return dtype == DType::kF32 ? 1e-6 : dtype == DType::kF16 ? 0x1p-12 : 1e-3;
  };
  for (const Case& c : kCases) {
    for (const int stage : {0, 1}) {
      for (const DType dtype : kPrecisions) {
        SCOPED_TRACE(fmt::format("stages {} ranks each {} accumulation {} ZeRO {} {}", c.num_stages,
                                 c.num_data, c.accumulation_steps, stage, SafetensorsName(dtype)));
        DsConfig config = PipelineConfig(stage, c.num_stages, c.num_data, c.accumulation_steps);
        SetPrecision(config, dtype);
        ExpectStagesTrainAsOne(model, config, tolerance(dtype));
      }
    }
  }
}

TEST(PipelineTest, AStageMayHaveFrozenLayersAlone) {
  Model model = ThreeBlocks();
  model.frozen = {true, true, true, false, false};
  for (const char* type : {"adamw", "lamb"}) {
    for (const int stage : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} ZeRO {}", type, stage));
      DsConfig config = PipelineConfig(stage, 2, 2, 3);
      config.optimizer.type = type;
      config.pipeline.partition = "uniform";
      DsConfig plain = config;
      plain.pipeline = {};
      const auto runs = Train(model, config, 4, 2);
      EXPECT_EQ(WholeParams(model, runs, config),
                WholeParams(model, Train(model, plain, 2, 2), plain));
      ExpectPredicted(model, config, runs);
    }
  }
}

// A bucket in which the stages would sum its gradients would be of the type that they accumulate
// in.
TEST(PipelineTest, AFrozenTiedEmbeddingNeedsNoBucket) {
  Model model = ThreeBlocks();
  for (const bool frozen : {false, true}) {
    model.frozen.assign(model.layers.size(), false);
    model.frozen[0] = frozen;
    DsConfig config = PipelineConfig(0, 2, 1, 3);
    config.bf16 = true;
    const auto state_bytes = [&] { return Predicted(model, config, 2, 1).state_bytes; };
    const int64_t before = state_bytes();
    config.grad_accum_type = DType::kF32;
    EXPECT_EQ(state_bytes() > before, !frozen);
  }
}

struct Row {
  const char* name;
  int min_stage;
  void (*apply)(DsConfig&);
};

constexpr Row kRows[] = {
    {"checkpoints", 0, [](DsConfig& c) { c.activation.checkpoint_interval = 1; }},
    {"checkpoints on host", 0,
     [](DsConfig& c) { c.activation = {.checkpoint_interval = 2, .checkpoints_on_host = true}; }},
    {"small buckets", 0, [](DsConfig& c) { c.zero.reduce_bucket_size = 1000; }},
    {"optimizer on host", 1, [](DsConfig& c) { c.zero.offload_optimizer.tier = Tier::kHost; }},
    {"optimizer on disk, checkpoints", 1,
     [](DsConfig& c) {
       c.zero.offload_optimizer = {.tier = Tier::kNvme, .nvme_path = testing::TempDir()};
       c.zero.sub_group_size = 1000;
       c.activation.checkpoint_interval = 1;
     }},
};

// In f16 the overflow of one stage is every stage's.
void ExpectRowsLeaveTheSameBits(const Model& model, const DsConfig& plain, int world_size) {
  const int num_steps = NumStepsFor(plain);
  const auto plain_runs = Train(model, plain, world_size, num_steps);
  EXPECT_EQ(plain_runs[0].steps[0].skipped, plain.fp16.enabled);
  EXPECT_FALSE(plain_runs[0].steps.back().skipped);
  ExpectSkips(plain_runs, Skips(plain_runs[0]));
  for (const Row& row : kRows) {
    if (plain.zero.stage < row.min_stage) continue;
    SCOPED_TRACE(row.name);
    DsConfig config = plain;
    row.apply(config);
    const auto runs = Train(model, config, world_size, num_steps);
    ExpectSkips(runs, Skips(plain_runs[0]));
    ExpectSameBits(WholeParams(model, runs, config), WholeParams(model, plain_runs, plain), config);
    ExpectPredicted(model, config, runs);
  }
}

TEST(PipelineTest, EverySettingBesideLeavesTheSameBits) {
  const Model model = ThreeBlocks();
  for (const Case& c : {Case{2, 1, 4}, Case{2, 2, 3}, Case{3, 1, 3}}) {
    for (const DType dtype : kPrecisions) {
      for (const int stage : {0, 1}) {
        SCOPED_TRACE(fmt::format("stages {} ranks each {} ZeRO {} {}", c.num_stages, c.num_data,
                                 stage, SafetensorsName(dtype)));
        DsConfig plain = PipelineConfig(stage, c.num_stages, c.num_data, c.accumulation_steps);
        SetPrecision(plain, dtype);
        ExpectRowsLeaveTheSameBits(model, plain, c.num_stages * c.num_data);
      }
    }
  }
}

TEST(PipelineTest, StagesOfTiedLayersKeepEqualCopies) {
  const Model model = ThreeBlocks();
  const DsConfig config = PipelineConfig(0, 3, 1, 2);
  const auto runs = Train(model, config, 3, 3);
  EXPECT_EQ(runs[0].params[0], runs[2].params[0]);  // The embedding, on the first and last stage.
  EXPECT_TRUE(runs[1].params[0].empty());
}

TEST(PipelineTest, StagesSayHowLongTheyWaitForEachOther) {
  const Model model = ThreeBlocks();
  for (const RankRun& run : Train(model, PipelineConfig(0, 3, 1, 3), 3, 2)) {
    EXPECT_GT(run.steps[1].idle_ms, 0);
    const StepResult& step = run.steps[1];
    EXPECT_LT(step.idle_ms, step.forward_ms + step.backward_ms + step.step_ms);
    // The emulated GPU's clock, which times all of these, counts pieces of work.
    if (TestDeviceKind() == DeviceKind::kCpu) {
      EXPECT_LT(step.idle_ms, step.latency_ms);
    }
  }
  EXPECT_EQ(Train(model, PipelineConfig(0, 1, 1, 3), 1, 2)[0].steps[1].idle_ms, 0);
}

TEST(PipelineTest, EarlierStagesHoldMoreMicroBatches) {
  const Model model = ThreeBlocks();
  DsConfig config = PipelineConfig(0, 5, 1, 6);
  EXPECT_EQ(PlanFor(model, config, 5, 0).num_in_flight, 5);
  EXPECT_EQ(PlanFor(model, config, 5, 4).num_in_flight, 1);
}

TEST(PipelineTest, EvaluationGivesTheSameLossOnEveryStage) {
  const Model model = ThreeBlocks();
  const auto data = Synthetic();
  const auto evaluate = [&](const DsConfig& config, int world_size) {
    std::vector<double> losses(static_cast<size_t>(world_size));
    OnEngines(model, config, world_size, [&](Engine& engine, ProcessGroup& group) {
      engine.TrainBatch();
      losses[static_cast<size_t>(group.rank())] = engine.Evaluate(*data, 2);
      engine.TrainBatch();  // Evaluation leaves training as it was.
    });
    return losses;
  };
  DsConfig plain = PipelineConfig(0, 1, 1, 3);
  const double expected = evaluate(plain, 1)[0];
  for (const double loss : evaluate(PipelineConfig(1, 3, 2, 2), 6))
    EXPECT_NEAR(loss, expected, 1e-5);
  for (const double loss : evaluate(PipelineConfig(3, 1, 4, 1), 4))
    EXPECT_NEAR(loss, expected, 1e-5);
}

TEST(PipelineTest, CallsForOneStageAreRefused) {
  const Model model = ThreeBlocks();
  OnEngines(model, PipelineConfig(0, 2, 1, 1), 2, [&](Engine& engine, ProcessGroup&) {
    EXPECT_THROW(engine.Forward({}), Error);
    EXPECT_THROW(engine.Backward(), Error);
    EXPECT_THROW(engine.Step(), Error);
  });
}

}  // namespace
}  // namespace dsat::engine
