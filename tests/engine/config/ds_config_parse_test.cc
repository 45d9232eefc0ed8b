// ds_config: the built-in engine's typed form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/error.h"
#include "engine/config/ds_config.h"
#include "engine/config/keys.h"
#include "tests/base/error_code.h"
#include "tests/engine/config/ds_config_testing.h"

namespace dsat::engine {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ParseTest, DefaultsAreDeepSpeeds) {
  std::vector<std::string> warnings;
  DsConfig config = Parse(With("{}"), &warnings);
  EXPECT_THAT(warnings, Contains(HasSubstr("/optimizer/type is not given: AdamW")));
  EXPECT_EQ(config.batch.train_batch_size, 2);
  EXPECT_FALSE(config.bf16);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.steps_per_print, std::nullopt);
  EXPECT_EQ(config.zero.stage, 0);
  EXPECT_FALSE(config.zero.overlap_comm);
  EXPECT_TRUE(config.zero.reduce_scatter);
  EXPECT_EQ(config.zero.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(config.zero.stage3_prefetch_bucket_size, 50'000'000);
  EXPECT_EQ(config.zero.stage3_param_persistence_threshold, 100'000);
  EXPECT_EQ(config.zero.stage3_max_live_parameters, 1'000'000'000);
  EXPECT_EQ(config.scheduler.type, "");
}

TEST(ParseTest, StructsStartWithTheDefaultsOfTheKeyTable) {
  DsConfig defaults;
  defaults.batch = {.train_batch_size = 2, .micro_batch_size = 1, .accumulation_steps = 1};
  EXPECT_TRUE(Parse(With("{}")) == defaults);
  const DsConfig cycle = Parse(With(
      "{'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0, 'cycle_max_lr': 0}}}"));
  EXPECT_TRUE(cycle.scheduler.one_cycle == OneCycleConfig());
}

TEST(ParseTest, EveryHonoredKeyArrives) {
  DsConfig c = Parse(J(R"({'train_batch_size': 16, 'train_micro_batch_size_per_gpu': 2,
      'gradient_accumulation_steps': 4, 'bf16': {'enabled': true}, 'gradient_clipping': 0.5,
      'steps_per_print': 7, 'seed': 9,
      'zero_optimization': {'stage': 3, 'contiguous_gradients': false, 'reduce_scatter': false,
        'overlap_comm': false, 'reduce_bucket_size': 1e6, 'allgather_bucket_size': 2e6,
        'prefetch_bucket_size': 3e6, 'stage3_param_persistence_threshold': 4,
        'stage3_max_live_parameters': 5},
      'optimizer': {'type': 'Adam', 'params': {'lr': 0.1, 'betas': [0.5, 0.6], 'eps': 1e-3,
        'weight_decay': 0.2, 'decay_norms_and_biases': false, 'bias_correction': false,
        'adam_w_mode': false}},
      'scheduler': {'type': 'WarmupLR', 'params': {'warmup_min_lr': 0.01, 'warmup_max_lr': 0.02,
        'warmup_num_steps': 33, 'warmup_type': 'linear'}}})"));
  EXPECT_EQ(c.batch.train_batch_size, 16);
  EXPECT_EQ(c.batch.micro_batch_size, 2);
  EXPECT_EQ(c.batch.accumulation_steps, 4);
  EXPECT_TRUE(c.bf16);
  EXPECT_EQ(c.gradient_clipping, 0.5);
  EXPECT_EQ(c.steps_per_print, 7);
  EXPECT_EQ(c.seed, 9);
  EXPECT_EQ(c.zero.stage, 3);
  EXPECT_FALSE(c.zero.contiguous_gradients);
  EXPECT_FALSE(c.zero.reduce_scatter);
  EXPECT_FALSE(c.zero.overlap_comm);
  EXPECT_EQ(c.zero.reduce_bucket_size, 1'000'000);
  EXPECT_EQ(c.zero.allgather_bucket_size, 2'000'000);
  EXPECT_EQ(c.zero.stage3_prefetch_bucket_size, 3'000'000);
  EXPECT_EQ(c.zero.stage3_param_persistence_threshold, 4);
  EXPECT_EQ(c.zero.stage3_max_live_parameters, 5);
  EXPECT_EQ(c.optimizer.type, "adam");
  EXPECT_EQ(c.optimizer.lr, 0.1);
  EXPECT_EQ(c.optimizer.beta1, 0.5);
  EXPECT_EQ(c.optimizer.beta2, 0.6);
  EXPECT_EQ(c.optimizer.eps, 1e-3);
  EXPECT_EQ(c.optimizer.weight_decay, 0.2);
  EXPECT_FALSE(c.optimizer.decay_norms_and_biases);
  EXPECT_FALSE(c.optimizer.bias_correction);
  EXPECT_FALSE(c.optimizer.adam_w_mode);
  EXPECT_EQ(c.scheduler.type, "WarmupLR");
  EXPECT_EQ(c.scheduler.warmup_min_lr, 0.01);
  EXPECT_EQ(c.scheduler.warmup_max_lr, 0.02);
  EXPECT_EQ(c.scheduler.warmup_num_steps, 33);
  EXPECT_TRUE(c.scheduler.warmup_linear);
}

TEST(ParseTest, EveryHonoredKeyOfMemoryAndMovementArrives) {
  const DsConfig c = Parse(J(R"({'train_batch_size': 2,
      'communication_data_type': 'fp32', 'data_types': {'grad_accum_dtype': 'bfloat16'},
      'zero_optimization': {'stage': 3, 'allgather_partitions': false, 'reduce_scatter': false,
        'sub_group_size': 7, 'stage3_max_reuse_distance': 8,
        'stage3_model_persistence_threshold': 9,
        'offload_optimizer': {'device': 'nvme', 'nvme_path': '/a', 'buffer_count': 10,
          'pipeline_read': true, 'pipeline_write': true, 'ratio': 0.5},
        'offload_param': {'device': 'cpu', 'nvme_path': '/b', 'buffer_count': 11,
          'buffer_size': 12, 'max_in_cpu': 13}},
      'activation_checkpointing': {'cpu_checkpointing': true, 'keep_norms_and_activations': true},
      'aio': {'block_size': 8192, 'queue_depth': 3, 'intra_op_parallelism': 2,
        'single_submit': true, 'overlap_events': false}})"));
  EXPECT_EQ(c.zero.offload_optimizer.tier, Tier::kNvme);
  EXPECT_EQ(c.zero.offload_optimizer.nvme_path, "/a");
  EXPECT_EQ(c.zero.offload_optimizer.buffer_count, 10);
  EXPECT_TRUE(c.zero.offload_optimizer.pipeline_read && c.zero.offload_optimizer.pipeline_write);
  EXPECT_EQ(c.zero.offload_optimizer.ratio, 0.5);
  EXPECT_EQ(c.zero.offload_param.tier, Tier::kHost);
  EXPECT_EQ(c.zero.offload_param.buffer_count, 11);
  EXPECT_EQ(c.zero.offload_param.buffer_size, 12);
  EXPECT_EQ(c.zero.offload_param.max_in_cpu, 13);
  EXPECT_FALSE(c.zero.allgather_partitions);
  EXPECT_EQ(c.zero.sub_group_size, 7);
  EXPECT_EQ(c.zero.stage3_max_reuse_distance, 8);
  EXPECT_EQ(c.zero.stage3_model_persistence_threshold, 9);
  EXPECT_EQ(c.communication_type, DType::kF32);
  EXPECT_EQ(c.grad_accum_type, DType::kBF16);
  EXPECT_TRUE(c.activation.checkpoints_on_host);
  EXPECT_TRUE(c.activation.keeps_outputs);
  EXPECT_EQ(c.activation.checkpoint_interval, 1);
  EXPECT_EQ(c.aio, (AioOptions{8192, 3, 2, true, false}));
}

TEST(ParseTest, PipelinesAndPredivisionArrive) {
  const DsConfig c = Parse(With(
      "{'pipeline': {'stages': 2, 'partition': 'uniform', 'activation_checkpoint_interval': 3},"
      " 'gradient_predivide_factor': 4,"
      " 'gradient_allreduce_op': 'sum', 'activation_checkpointing': {'number_checkpoints': 5}}"));
  EXPECT_EQ(c.pipeline.num_stages, 2);
  EXPECT_EQ(c.pipeline.partition, "uniform");
  EXPECT_EQ(c.activation.checkpoint_interval, 3);
  EXPECT_EQ(c.activation.num_checkpoints, 5);
  EXPECT_EQ(c.gradient_predivide_factor, 1);  // A sum is not divided.
  EXPECT_FALSE(c.average_gradients);
}

// Prescaling divides by the ranks, whatever the factor is; without it the factor holds.
TEST(ParseTest, PrescalingTakesThePlaceOfPredivision) {
  const auto factor = [](const char* config) {
    return Parse(With(config)).gradient_predivide_factor;
  };
  EXPECT_EQ(factor("{}"), 1);
  EXPECT_EQ(factor("{'gradient_predivide_factor': 4}"), 4);
  EXPECT_EQ(factor("{'prescale_gradients': true}"), 2);
  EXPECT_EQ(factor("{'prescale_gradients': true, 'gradient_predivide_factor': 4}"), 2);
  EXPECT_EQ(factor("{'prescale_gradients': true, 'pipeline': {'stages': 2}}"), 1);
}

TEST(ParseTest, DefaultsThatDependOnOtherKeys) {
  EXPECT_TRUE(Parse(With("{'zero_optimization': {'stage': 3}}")).zero.overlap_comm);
  EXPECT_FALSE(Parse(With("{'zero_optimization': {'stage': 2}}")).zero.overlap_comm);
  DsConfig config =
      Parse(With("{'optimizer': {'type': 'adamw', 'params': {'lr': 0.25}},"
                 " 'scheduler': {'type': 'WarmupLR',"
                 " 'params': {'warmup_num_steps': 1}}}"));
  EXPECT_EQ(config.scheduler.warmup_max_lr, 0.25);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 2);
  EXPECT_TRUE(Parse(With("{'optimizer': {'type': 'AdamW', 'params': {'adam_w_mode': false}}}"))
                  .optimizer.adam_w_mode);
  DsConfig sgd =
      Parse(With("{'optimizer': {'type': 'SGD', 'params': {'lr': 1, 'momentum': 0.9,"
                 " 'dampening': 0.1}}}"));
  EXPECT_EQ(sgd.optimizer.type, "sgd");
  EXPECT_EQ(sgd.optimizer.momentum, 0.9);
  EXPECT_EQ(sgd.optimizer.dampening, 0.1);
  EXPECT_EQ(Parse(With("{'zero_optimization': true}")).zero.stage, 1);
  EXPECT_EQ(Parse(With("{'zero_optimization': {'stage': true}}")).zero.stage, 1);
}

TEST(ParseTest, WhatItCannotHonorIsRefusedByName) {
  struct Case {
    const char* config;
    const char* message;
  };
  const Case cases[] = {
      {"{'optimizer': {'type': 'OneBitLamb'}}", "/optimizer/type is \"OneBitLamb\""},
      {"{'bf16': {'enabled': true, 'bf16_master_weights_and_grads': true,"
       " 'bf16_optimizer_states': true},"
       " 'optimizer': {'type': 'Lion'}, 'zero_optimization': {'stage': 2}}",
       "/bf16/bf16_master_weights_and_grads is true; the built-in engine has it for Adam and AdamW "
       "only, and /optimizer/type is \"Lion\""},
      {"{'zero_optimization': {'stage': 3, 'zero_quantized_weights': true}}",
       "/zero_optimization/zero_quantized_weights is true"},
      {"{'optimizer': {'type': 'Lamb', 'params': {'eps_inside_sqrt': true}}}",
       "/optimizer/params/eps_inside_sqrt is true"},
      {"{'scheduler': {'type': 'StepLR', 'params': {'step_size': 9}}}",
       "/scheduler/type is \"StepLR\""},
      {"{'sparse_gradients': true}", "/sparse_gradients is true"},
      {"{'data_efficiency': {'enabled': true}}", "/data_efficiency/enabled is true"},
      // It works without the switches around it.
      {"{'data_efficiency': {'data_routing': {'random_ltd': {'enabled': true}}}}",
       "/data_efficiency/data_routing/random_ltd/enabled is true"},
      {"{'compression_training': {'x': 1}}", "/compression_training is {\"x\":1}"},
  };
  for (const Case& c : cases) {
    std::string message;
    EXPECT_EQ(CodeOf([&] { Parse(With(c.config)); }, &message), ErrorCode::kUnimplemented);
    EXPECT_THAT(message, HasSubstr(std::string("ds.json: ") + c.message));
    EXPECT_THAT(message, HasSubstr("an external DeepSpeed entrypoint can run it"));
    EXPECT_THAT(ValidateDsConfig(With(c.config), "ds.json", 2).warnings, IsEmpty()) << c.config;
  }
}

TEST(ParseTest, LegalKeysWithoutMeaningAreNamedInAWarning) {
  struct Case {
    const char* config;
    const char* pointer;
  };
  const Case cases[] = {
      {"{'zero_optimization': {'round_robin_gradients': true}}",
       "/zero_optimization/round_robin_gradients is true"},
      {"{'activation_checkpointing': {'partition_activations': true}}",
       "/activation_checkpointing/partition_activations is true"},
      {"{'wandb': {'enabled': true}}", "/wandb/enabled is true"},
      {"{'wall_clock_breakdown': true}", "/wall_clock_breakdown is true"},
      {"{'aio': {'use_gds': true}}", "/aio/use_gds is true"},
      {"{'log_level': 'info'}", "/log_level is \"info\""},
      {"{'checkpoint': {'checkpoint_serialization': false}}",
       "/checkpoint/checkpoint_serialization is false"},
      {"{'checkpoint': {'writer': {'decoupled': true}}}",
       "/checkpoint/writer is {\"decoupled\":true}"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> warnings;
    Parse(With(c.config), &warnings);
    EXPECT_THAT(warnings, Contains(HasSubstr(c.pointer))) << c.config;
  }
}

TEST(ParseTest, TheDefaultThatStandsForAutoIsNamedInAWarning) {
  std::vector<std::string> warnings;
  Parse(With("{'optimizer': {'type': 'AdamW', 'params': {'lr': 'auto', 'weight_decay': 0.1}},"
             " 'bf16': {'enabled': 'auto'}, 'gradient_accumulation_steps': 'auto',"
             " 'zero_optimization': {'stage': 3, 'prefetch_bucket_size': 'auto'}}"),
        &warnings);
  EXPECT_THAT(warnings, testing::UnorderedElementsAre(
                            "ds.json: /optimizer/params/lr is \"auto\", which the built-in engine "
                            "takes as the default, 0.001",
                            "ds.json: /bf16/enabled is \"auto\", which the built-in engine takes "
                            "as the default, false",
                            "ds.json: /zero_optimization/stage3_prefetch_bucket_size is \"auto\", "
                            "which the built-in engine takes as the default, 50000000"));
}

TEST(ParseTest, DefaultsWrittenOutNeitherWarnNorRefuse) {
  Json config = With("{'optimizer': {'type': 'Adam'}}");
  for (const Key& key : Keys()) {
    bool value = key.type != KeyType::kSection && key.type != KeyType::kOpenSection &&
                 key.type != KeyType::kAlias && *key.variants == '\0';
    bool scheduler = std::string_view(key.pointer).starts_with("/scheduler");
    const Json& fallback = Keys().Default(key);
    if (value && !scheduler && !fallback.is_null()) SetAtPointer(config, key.pointer, fallback);
  }
  std::vector<std::string> warnings;
  Parse(config, &warnings);
  // /aio is a section that warns as a whole; it holds nothing but defaults here.
  EXPECT_THAT(warnings, testing::Each(HasSubstr("/aio is")));
}

// Stages 1 and 2 need an optimizer: a DeepSpeed script may bring one, the built-in engine says
// which it takes.
TEST(ParseTest, TheBuiltInEngineNamesTheOptimizerThatItTakes) {
  for (const int stage : {1, 2}) {
    std::vector<std::string> warnings;
    const Json config = With(fmt::format("{{'zero_optimization': {{'stage': {}}}}}", stage));
    EXPECT_EQ(Parse(config, &warnings).optimizer.type, "adamw");
    EXPECT_THAT(warnings,
                testing::ElementsAre("ds.json: /optimizer/type is not given: AdamW with lr 0.001"));
  }
}

// The built-in engine does what a warning says.
TEST(ParseTest, OffloadedGradientsOfStages1And2AreContiguous) {
  const auto contiguous = [](int stage, const char* device) {
    return Parse(With(fmt::format("{{'optimizer': {{'type': 'AdamW'}}, 'zero_optimization': "
                                  "{{'stage': {}, 'contiguous_gradients': false, "
                                  "'offload_optimizer': {{'device': '{}'}}}}}}",
                                  stage, device)))
        .zero.contiguous_gradients;
  };
  EXPECT_TRUE(contiguous(1, "cpu"));
  EXPECT_TRUE(contiguous(2, "cpu"));
  EXPECT_FALSE(contiguous(3, "cpu"));
  EXPECT_FALSE(contiguous(2, "none"));
}

}  // namespace
}  // namespace dsat::engine
