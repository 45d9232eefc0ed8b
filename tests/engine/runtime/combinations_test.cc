// Settings drawn at random: any combination that is not refused trains to the bits of the same
// training without those that only move state, and holds and moves what was predicted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <span>

#include "tests/engine/config/ds_config_testing.h"
#include "tests/engine/runtime/expect_predicted.h"

namespace dsat::engine {
namespace {

constexpr int kNumCombinations = 60;
constexpr int kNumSteps = 3;

struct Setting {
  const char* pointer;
  const char* values;  // A JSON array; null: not given.
};

constexpr Setting kArithmetic[] = {
    {"/train_micro_batch_size_per_gpu", "[1, 2]"},
    {"/gradient_accumulation_steps", "[1, 1, 3]"},
    {"/optimizer/type", "['Adam', 'AdamW', 'SGD', 'Lamb', 'Adagrad', 'Lion']"},
    {"/zero_optimization/stage", "[0, 1, 2, 3, 3]"},
    {"/zero_optimization/reduce_scatter", "[true, false]"},
    {"/pipeline/stages", "[1, 1, 2, 3]"},
    {"/pipeline/partition", "['uniform', 'parameters']"},
    {"/bf16",
     "[null, {'enabled': true}, {'enabled': true, 'bf16_master_weights_and_grads': true,"
     " 'bf16_optimizer_states': true}]"},
    {"/fp16", "[null, {'enabled': true, 'initial_scale_power': 12}]"},
    {"/communication_data_type", "[null, 'fp16', 'bf16', 'fp32']"},
    {"/data_types/grad_accum_dtype", "[null, 'fp32']"},
    {"/gradient_clipping", "[0, 0.1]"},
    {"/prescale_gradients", "[false, true]"},
    {"/gradient_predivide_factor", "[1, 3]"},
    {"/gradient_allreduce_op", "['mean', 'mean', 'sum']"},
};

constexpr Setting kMovement[] = {
    {"/zero_optimization/reduce_bucket_size", "[100, 5000, 1000000]"},
    {"/zero_optimization/allgather_bucket_size", "[100, 5000, 1000000]"},
    {"/zero_optimization/overlap_comm", "[true, false]"},
    {"/zero_optimization/contiguous_gradients", "[true, false]"},
    {"/zero_optimization/allgather_partitions", "[true, false]"},
    {"/zero_optimization/sub_group_size", "[100, 1000, 1000000]"},
    {"/zero_optimization/stage3_prefetch_bucket_size", "[0, 1000, 10000]"},
    {"/zero_optimization/stage3_max_live_parameters", "[0, 5000, 1000000]"},
    {"/zero_optimization/stage3_max_reuse_distance", "[0, 5000, 1000000]"},
    {"/zero_optimization/stage3_param_persistence_threshold", "[0, 30, 2000]"},
    {"/zero_optimization/stage3_model_persistence_threshold", "[0, 3000, 1000000]"},
    {"/zero_optimization/offload_optimizer",
     "[null, {'device': 'cpu'}, {'device': 'nvme', 'nvme_path': '/tmp'},"
     " {'device': 'cpu', 'ratio': 0.4}, {'device': 'nvme', 'nvme_path': '/tmp',"
     "  'buffer_count': 20, 'pipeline_read': true, 'pipeline_write': true}]"},
    {"/zero_optimization/offload_param",
     "[null, {'device': 'cpu'}, {'device': 'nvme', 'nvme_path': '/tmp', 'max_in_cpu': 3000},"
     " {'device': 'nvme', 'nvme_path': '/tmp', 'max_in_cpu': 0, 'buffer_count': 1}]"},
    {"/activation_checkpointing/cpu_checkpointing", "[true, false]"},
    {"/activation_checkpointing/keep_norms_and_activations", "[true, false]"},
    {"/activation_checkpointing/number_checkpoints", "[null, null, 1, 2]"},
    {"/pipeline/activation_checkpoint_interval", "[0, 1, 2]"},
    {"/aio/block_size", "[4096, 1048576]"},
    {"/aio/intra_op_parallelism", "[1, 2]"},
};

void Draw(std::span<const Setting> settings, std::mt19937& random, Json& config) {
  for (const Setting& setting : settings) {
    const Json values = J(setting.values);
    const Json& value = values[random() % values.size()];
    if (!value.is_null()) SetAtPointer(config, setting.pointer, value);
  }
}

std::optional<DsConfig> ParseUnlessRefused(const Json& config, int world_size) {
  try {
    return ParseDsConfig(config, "ds.json", world_size, nullptr);
  } catch (const Error& error) {
    const bool may_elsewhere = error.code() == ErrorCode::kUnimplemented;
    EXPECT_TRUE(may_elsewhere || error.code() == ErrorCode::kInvalidArgument) << error.what();
    return std::nullopt;
  }
}

struct Combination {
  Json all;
  DsConfig config;
  DsConfig plain;  // Without what only moves state.
  int world_size;
};

Combination DrawValid(std::mt19937& random) {
  while (true) {
    Json arithmetic = {{"zero_allow_untested_optimizer", true}};
    Draw(kArithmetic, random, arithmetic);
    // Parameters that rest replicated have gradients that do, too.
    SetAtPointer(arithmetic, "/zero_optimization/stage3_param_persistence_threshold", 0);
    Json all = arithmetic;
    Draw(kMovement, random, all);
    const int world_size =
        static_cast<int>(1 + random() % 3) * arithmetic["pipeline"]["stages"].get<int>();
    const auto config = ParseUnlessRefused(all, world_size);
    if (!config) continue;
    return {all, *config, ParseDsConfig(arithmetic, "ds.json", world_size, nullptr), world_size};
  }
}

// Freezes some layers of every second model, but not the one before the last, which has parameters.
void Freeze(Model& model, std::mt19937& random) {
  const size_t num_layers = model.layers.size();
  model.frozen.assign(random() % 2 == 0 ? num_layers : 0, false);
  for (size_t u = 0; u < model.frozen.size(); ++u)
    model.frozen[u] = u + 2 != num_layers && random() % 2 == 0;
}

void ExpectAsPlain(const Model& model, const Combination& c) {
  SCOPED_TRACE(fmt::format("{} ranks {}", c.world_size, c.all.dump()));
  const auto runs = Train(model, c.config, c.world_size, kNumSteps);
  ExpectSkips(runs, Skips(runs[0]));
  if (!runs[0].steps.back().skipped) ExpectPredicted(model, c.config, runs);
  // Gradients that rest elsewhere are summed in another order.
  if (PlanFor(model, c.config, c.world_size).grad_home !=
      PlanFor(model, c.plain, c.world_size).grad_home)
    return;
  const auto plain = Train(model, c.plain, c.world_size, kNumSteps);
  ExpectSkips(plain, Skips(runs[0]));
  EXPECT_EQ(WholeParams(model, runs, c.config), WholeParams(model, plain, c.plain));
}

TEST(CombinationsTest, WhatOnlyMovesStateChangesNoBitAndIsPredicted) {
  std::mt19937 random(1);
  for (int i = 0; i < kNumCombinations && !testing::Test::HasFailure(); ++i) {
    Model models[] = {TinyGpt2(), TinyLlama(), TinyMlp(), TinyResnet()};
    Freeze(models[i % 4], random);
    ExpectAsPlain(models[i % 4], DrawValid(random));
  }
}

// Its gathers are others than those of training: which units one call carries, and in which of two
// buckets, depends on what comes next.
TEST(CombinationsTest, AnEvaluationFitsTheBucketsOfTraining) {
  std::mt19937 random(2);
  for (int i = 0; i < 4 * kNumCombinations; ++i) {
    Model models[] = {TinyGpt2(), TinyLlama(), TinyMlp(), TinyResnet()};
    Model& model = models[i % 4];
    Freeze(model, random);
    const Combination c = DrawValid(random);
    const int stages = c.config.pipeline.num_stages;
    const int64_t num_micro_batches = i % 2 == 0 ? 1 : c.config.batch.accumulation_steps;
    for (int stage = 0; stage < stages; ++stage) {
      SCOPED_TRACE(fmt::format("{} ranks {}", c.world_size, c.all.dump()));
      const Plan training = PlanFor(model, c.config, c.world_size, stage);
      const Plan evaluation =
          EvaluationPlanFor(model, c.config, training, stage, num_micro_batches);
      for (size_t b = 0; b < training.bucket_row_elems.size(); ++b)
        ASSERT_LE(evaluation.bucket_row_elems[b], training.bucket_row_elems[b]);
    }
  }
}

TEST(CombinationsTest, AnEvaluationWhoseGathersAreCutGivesTheSameLoss) {
  const Model model = TinyGpt2();
  const auto data = Synthetic();
  for (const bool overlap : {false, true}) {
    DsConfig config = TinyConfig(3, 2, 2);
    config.zero.overlap_comm = overlap;
    config.zero.stage3_prefetch_bucket_size = 10'000;
    RunRanks(2, [&](ProcessGroup& group) {
      TestDevice device(group);
      Engine engine(device.For(model, data.get(), kSeqLen), config, 7);
      Engine plain(device.For(model, data.get(), kSeqLen), TinyConfig(0, 2, 2), 7);
      EXPECT_EQ(engine.Evaluate(*data, 2), plain.Evaluate(*data, 2));
    });
  }
}

}  // namespace
}  // namespace dsat::engine
