// ds_config: the key table and the rules.
#include "engine/config/ds_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "base/error.h"
#include "engine/config/keys.h"
#include "engine/config/validate.h"
#include "tests/base/error_code.h"
#include "tests/engine/config/ds_config_testing.h"

namespace dsat::engine {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Refusal(const Json& config) {
  return RefusalOf([&] { ValidateDsConfig(config, "ds.json", 2); });
}

// Keys.

TEST(ValidateTest, OrdinaryConfigsPassWithoutWarnings) {
  for (const char* config : {
           "{'train_batch_size': 16, 'zero_optimization': true}",
           "{'train_batch_size': 16, 'zero_optimization': {'stage': '2'}}",
           "{'train_batch_size': 16, 'zero_optimization': {'stage': 2.0}}",
           "{'train_batch_size': 16, 'zero_optimization': {'stage': 3, 'reduce_bucket_size': 5e8,"
           " 'prefetch_bucket_size': 1e7, 'overlap_comm': 'auto', 'sub_group_size': null}}",
           "{'train_batch_size': 16, 'fp16': {'enabled': 'auto', 'loss_scale': 0}}",
           "{'train_batch_size': 16, 'bfloat16': {'enabled': true}}",
           "{'train_batch_size': 4, 'optimizer': {'type': 'OneBitAdam',"
           " 'params': {'lr': 1e-3, 'freeze_step': 400, 'cuda_aware': true}}}",
           "{'train_batch_size': 4, 'scheduler': {'type': 'CosineAnnealingLR',"
           " 'params': {'T_max': 10}}}",
           "{'train_batch_size': 4, 'scheduler': {'type': 'OneCycle',"
           " 'params': {'cycle_min_lr': 1e-4, 'cycle_max_lr': 1e-3}}}",
           "{'train_batch_size': 4, 'wandb': {'enabled': true, 'team': 'x'}}",
           "{'train_batch_size': 4, 'autotuning': {'any_key': [1]}}",
           "{'train_batch_size': 4, 'autotuning': {'enabled': true, 'fast': false}}",
           "{'train_batch_size': 4, 'gradient_clipping': 'auto'}",
           "{'train_batch_size': 4, 'zero_optimization': {'cpu_offload': false}}",
       }) {
    EXPECT_THAT(ValidateDsConfig(J(config), "ds.json", 2).warnings, IsEmpty()) << config;
  }
}

TEST(ValidateTest, TheConfigOfTheDocumentationPasses) {
  Json config = J(R"({'optimizer': {'type': 'Adam', 'params': {'betas': [0.8, 0.999],
      'eps': 1.0e-08, 'lr': 0.001, 'weight_decay': 3.0e-07}}, 'train_batch_size': 16,
      'zero_optimization': {'stage': 0, 'allgather_bucket_size': 50000000,
      'allgather_partitions': true, 'contiguous_gradients': true, 'cpu_offload': false,
      'overlap_comm': true, 'reduce_bucket_size': 50000000, 'reduce_scatter': true}})");
  EXPECT_THAT(ValidateDsConfig(config, "ds.json", 2).warnings, IsEmpty());
  std::vector<std::string> warnings;
  DsConfig parsed = Parse(config, &warnings);
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_EQ(parsed.optimizer.beta1, 0.8);
  EXPECT_EQ(parsed.zero.reduce_bucket_size, 50000000);
}

TEST(ValidateTest, BadValuesAreNamedWithTheirRange) {
  struct Case {
    const char* config;
    const char* message;
  };
  const Case cases[] = {
      {"{'gradient_clipping': -1}", "ds.json: /gradient_clipping is -1; expected a number >= 0"},
      {"{'gradient_clipping': '1'}", "/gradient_clipping is \"1\""},
      {"{'train_micro_batch_size_per_gpu': 0}", "is 0; expected an integer >= 1"},
      {"{'steps_per_print': 2.5}", "/steps_per_print is 2.5; expected an integer >= 1"},
      {"{'zero_optimization': {'stage': 4}}", "/zero_optimization/stage is 4; expected an integer"},
      {"{'zero_optimization': {'stage': 'two'}}", "/zero_optimization/stage is \"two\""},
      {"{'zero_optimization': {'reduce_bucket_size': 5.5}}", "is 5.5; expected an integer >= 1"},
      {"{'zero_optimization': {'reduce_bucket_size': '5e8'}}", "is \"5e8\"; expected an integer"},
      {"{'zero_optimization': {'reduce_bucket_size': 0}}", "is 0; expected an integer >= 1"},
      {"{'zero_optimization': {'prefetch_bucket_size': -1}}",
       "/zero_optimization/prefetch_bucket_size is -1; expected an integer >= 0"},
      {"{'zero_optimization': {'overlap_comm': 1}}", "is 1; expected true or false"},
      {"{'zero_optimization': 2}", "/zero_optimization is 2; expected an object"},
      {"{'zero_optimization': {'offload_param': {'device': 'gpu'}}}",
       "/zero_optimization/offload_param/device is \"gpu\"; expected one of none cpu nvme"},
      {"{'zero_optimization': {'offload_optimizer': {'ratio': 1.5}}}",
       "expected a number in [0, 1]"},
      {"{'optimizer': {'type': 'Adam', 'params': {'betas': [0.9, 1.0]}}}",
       "/optimizer/params/betas is [0.9,1.0]; expected two numbers in [0, 1)"},
      {"{'optimizer': {'type': 'Adam', 'params': {'betas': 0.9}}}", "expected two numbers"},
      {"{'optimizer': {'type': 'Adam', 'params': {'lr': '1e-3'}}}", "/optimizer/params/lr"},
      {"{'optimizer': 'Adam'}", "/optimizer is \"Adam\"; expected an object"},
      {"{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_num_steps': 0}}}",
       "/scheduler/params/warmup_num_steps is 0; expected an integer >= 1"},
      {"{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_type': 'cubic'}}}", "log linear"},
      {"{'gradient_predivide_factor': 0}", "expected a number > 0"},
      {"{'checkpoint': {'tag_validation': 'Never'}}", "/checkpoint/tag_validation"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(Refusal(With(c.config)), HasSubstr(c.message));
  EXPECT_THAT(Refusal(Json::array()), HasSubstr("the config is an array; expected an object"));
}

TEST(ValidateTest, EveryKeyOfTheTableRefusesAWrongType) {
  for (const Key& key : Keys()) {
    if (key.type == KeyType::kAny) continue;
    Json config = {{"train_micro_batch_size_per_gpu", 1}};
    std::string type = key.variants;
    type = type.substr(0, type.find(' '));
    if (!type.empty()) {
      bool optimizer = std::string_view(key.pointer).starts_with("/optimizer");
      SetAtPointer(config, optimizer ? "/optimizer/type" : "/scheduler/type",
                   type == "sgd" ? "SGD" : type);
    }
    SetAtPointer(config, key.pointer, Json::array({"wrong"}));
    EXPECT_THAT(Refusal(config), HasSubstr(std::string(key.pointer) + " is [\"wrong\"]; expected"));
  }
}

TEST(ValidateTest, TyposAreRefusedWithTheNearestKey) {
  struct Case {
    const char* config;
    const char* message;
  };
  const Case cases[] = {
      {"{'zero_optimizaton': {}}",
       "/zero_optimizaton is {}: unknown key; did you mean "
       "\"zero_optimization\"?"},
      {"{'gradient_cliping': 1}", "\"gradient_clipping\""},
      {"{'zero_optimization': {'stag': 1}}",
       "/zero_optimization/stag is 1: unknown key; did you "
       "mean \"stage\"?"},
      {"{'zero_optimization': {'something_else': 1}}", "unknown key; remove it"},
      {"{'zero_optimization': {'offload_param': {'devise': 'cpu'}}}", "\"device\""},
      {"{'bf16': {'enable': true}}", "/bf16/enable is true: unknown key; did you mean \"enabled\""},
      {"{'bfloat16': {'enable': true}}", "did you mean \"enabled\""},
      {"{'optimizer': {'type': 'AdamW', 'params': {'beta': [0.9, 0.99]}}}", "\"betas\""},
      {"{'optimizer': {'type': 'Adam', 'params': {'momentum': 0.9}}}",
       "/optimizer/params/momentum is 0.9: \"adam\" does not have it, but other types do"},
      {"{'optimizer': {'type': 'SGD', 'params': {'betas': [0.9, 0.99]}}}",
       "\"sgd\" does not have it"},
      {"{'scheduler': {'type': 'WarmupLR', 'params': {'warmup_steps': 9}}}", "unknown key"},
      {"{'scheduler': {'type': 'WarmupLR', 'params': {'total_num_steps': 9}}}",
       "\"warmuplr\" does not have it"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(Refusal(With(c.config)), HasSubstr(c.message));
}

TEST(ValidateTest, UnknownTopLevelKeysAreNamedInAWarning) {
  EXPECT_THAT(ValidateDsConfig(With("{'my_notes': 'x', 'a/b': 1}"), "ds.json", 2).warnings,
              testing::ElementsAre("ds.json: not keys of DeepSpeed, which ignores unknown keys: "
                                   "/a/b, /my_notes"));
  EXPECT_THAT(ValidateDsConfig(With("{'optimizer/type': 'x'}"), "ds.json", 2).warnings,
              Contains(HasSubstr("not a key of DeepSpeed")));
}

TEST(ValidateTest, AFileOfUnknownKeysIsRefused) {
  Json config = With("{}");
  for (int i = 0; i < 1001; ++i)
    config[fmt::format("{:08}", i)] = i;
  EXPECT_THAT(Refusal(config), HasSubstr("more than 1000 keys are unknown"));
}

TEST(ValidateTest, UnknownKeysOfOpenSectionsAreNamedInAWarning) {
  EXPECT_THAT(ValidateDsConfig(With("{'checkpoint': {'use_node_local_storag': true, 'writer': 1},"
                                    " 'comms_logger': {'verbos': true}, 'comet': {'x_y_z': 1},"
                                    " 'amp': {'enabeld': true, 'opt_level': 'O1'},"
                                    " 'curriculum_learning': {'schedule_typ': 'fixed_root'},"
                                    " 'data_efficiency': {'seed': 1, 'data_samplin': {}}}"),
                               "ds.json", 2)
                  .warnings,
              testing::UnorderedElementsAre(
                  HasSubstr("/checkpoint/use_node_local_storag is not a key that dsat knows of "
                            "DeepSpeed; did you mean \"use_node_local_storage\"?"),
                  HasSubstr("/comms_logger/verbos is not a key that dsat knows of DeepSpeed; did "
                            "you mean \"verbose\"?"),
                  EndsWith("/comet/x_y_z is not a key that dsat knows of DeepSpeed"),
                  HasSubstr("/amp/enabeld is not a key"),
                  HasSubstr("/curriculum_learning/schedule_typ is not a key"),
                  HasSubstr("/data_efficiency/data_samplin is not a key")));
}

// Combinations.

// A rule, or what the table of keys says of a stage: "<key>; <the beginning of what is said>".
struct RuleCase {
  const char* finding;
  std::vector<const char*> broken, kept;
};

// dsat says everything that DeepSpeed 0.19 asserts about several keys together (runtime/engine.py,
// runtime/config.py, runtime/zero, runtime/pipe) before anything is launched, and warns where
// DeepSpeed runs on with something else than what was asked for, or depends on the script. An
// assertion about a script's own calls (an mpu beside a pipeline, no_sync at stages 2 and 3, a
// mixture of experts at stage 3) has no key.
const RuleCase kRuleCases[] = {
    {"/fp16/enabled; expected false, since /bf16/enabled is true",
     {"{'fp16': {'enabled': true}, 'bf16': {'enabled': true}}"},
     {"{'fp16': {'enabled': true}, 'bf16': {'enabled': false}}"}},
    {"/amp/enabled; expected false with ZeRO, /fp16/enabled or /bf16/enabled",
     {"{'amp': {'enabled': true}, 'zero_optimization': {'stage': 1}}",
      "{'amp': {'enabled': true}, 'bf16': {'enabled': true}}",
      "{'amp': {'enabled': true}, 'fp16': {'enabled': true}}"},
     {"{'amp': {'enabled': true}, 'zero_optimization': {'stage': 0}}",
      "{'amp': {'enabled': true, 'opt_level': 'O1'}}"}},
    {"/fp16/fp16_master_weights_and_grads; expected false unless ZeRO offloads Adam or AdamW",
     {"{'fp16': {'enabled': true, 'fp16_master_weights_and_grads': true},"
      " 'zero_optimization': {'stage': 2}}",
      "{'fp16': {'enabled': true, 'fp16_master_weights_and_grads': true}}",
      "{'fp16': {'enabled': true, 'fp16_master_weights_and_grads': true},"
      " 'optimizer': {'type': 'Lion'},"
      " 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}"},
     {"{'fp16': {'enabled': true, 'fp16_master_weights_and_grads': true},"
      " 'optimizer': {'type': 'AdamW'},"
      " 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}"}},
    {"/bf16/bf16_optimizer_states; expected false unless /bf16/bf16_master_weights_and_grads",
     {"{'bf16': {'enabled': true, 'bf16_optimizer_states': true}}",
      "{'bf16': {'enabled': true, 'bf16_optimizer_states': true},"
      " 'zero_optimization': {'stage': 1}}",
      "{'bf16': {'enabled': true, 'bf16_master_weights_and_grads': true,"
      " 'bf16_optimizer_states': true}}"},
     {"{'bf16': {'enabled': true, 'bf16_optimizer_states': true,"
      " 'bf16_master_weights_and_grads': true}, 'zero_optimization': {'stage': 1}}"}},
    {"/bf16/bf16_master_weights_and_grads; expected false unless ZeRO offloads Adam or AdamW",
     {"{'bf16': {'enabled': true, 'bf16_master_weights_and_grads': true},"
      " 'zero_optimization': {'stage': 2}}",
      "{'bf16': {'enabled': true, 'bf16_master_weights_and_grads': true},"
      " 'zero_optimization': {'stage': 1}}"},
     {"{'bf16': {'enabled': true, 'bf16_master_weights_and_grads': true},"
      " 'optimizer': {'type': 'Adam'},"
      " 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}"}},
    {"/optimizer/type; expected another optimizer: 1-bit optimizers exclude ZeRO",
     {"{'optimizer': {'type': 'OneBitAdam'}, 'zero_optimization': true}",
      "{'optimizer': {'type': 'OneBitAdam'}, 'zero_optimization': {'stage': 1}}",
      "{'optimizer': {'type': 'ZeroOneAdam'}, 'zero_optimization': {'stage': 2}}",
      "{'optimizer': {'type': 'OneBitLamb'}, 'zero_optimization': {'stage': 3}}"},
     {"{'optimizer': {'type': 'OneBitAdam'}, 'zero_optimization': false}"}},
    {"/optimizer/type; expected Adam, AdamW, Adagrad, Lion or Muon with ZeRO,",
     {"{'optimizer': {'type': 'SGD'}, 'zero_optimization': {'stage': 1}}",
      "{'optimizer': {'type': 'SGD'}, 'zero_optimization': {'stage': 2}}"},
     {"{'optimizer': {'type': 'SGD'}, 'zero_optimization': {'stage': 1},"
      " 'zero_allow_untested_optimizer': true}"}},
    {"/optimizer/type; expected another optimizer in a pipeline",
     {"{'optimizer': {'type': 'OneBitAdam'}, 'pipeline': {'stages': 2}}"},
     {"{'optimizer': {'type': 'OneBitAdam'}, 'pipeline': {'stages': 1}}"}},
    {"/optimizer/type; expected another optimizer than Lamb",
     {"{'optimizer': {'type': 'Lamb'},"
      " 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}},"
      " 'zero_allow_untested_optimizer': true}"},
     {"{'optimizer': {'type': 'Lamb'}, 'zero_optimization': {'stage': 2},"
      " 'zero_allow_untested_optimizer': true}"}},
    {"/pipeline/activation_checkpoint_interval; the built-in engine ignores it:",
     {"{'activation_checkpointing': {'number_checkpoints': 1},"
      " 'pipeline': {'activation_checkpoint_interval': 1}}"},
     {"{'activation_checkpointing': {'number_checkpoints': 1},"
      " 'pipeline': {'activation_checkpoint_interval': 0}}"}},
    {"/gradient_clipping; 1-bit Adam clips until freeze_step; after it no rank knows the whole",
     {"{'optimizer': {'type': 'OneBitAdam'}, 'gradient_clipping': 1}"},
     {"{'optimizer': {'type': 'OneBitAdam'}, 'gradient_clipping': 0}"}},
    {"/pipeline/stages; expected 1 with ZeRO stages 2 and 3, or a lower stage",
     {"{'pipeline': {'stages': 2}, 'zero_optimization': {'stage': 2}}",
      "{'pipeline': {'stages': 2}, 'zero_optimization': {'stage': 3}}"},
     {"{'pipeline': {'stages': 2}, 'zero_optimization': {'stage': 1}}"}},
    {"/aio/block_size; expected a multiple of 4096",
     {"{'aio': {'block_size': 1000}}"},
     {"{'aio': {'block_size': 8192}}"}},
    {"/optimizer/type; expected \"SGD\": names of torch.optim keep their case",
     {"{'optimizer': {'type': 'sgd'}}"},
     {"{'optimizer': {'type': 'SGD'}}"}},
    {"/optimizer/type; expected a type beside /optimizer/params",
     {"{'optimizer': {'params': {'lr': 1}}}"},
     {"{'optimizer': {'type': 'adamW', 'params': {'lr': 1}}}"}},
    {"/scheduler/type; expected a type beside /scheduler/params",
     {"{'scheduler': {'params': {}}}"},
     {"{'scheduler': {'type': 'WarmupLR'}}"}},
    {"/scheduler/type; expected WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest",
     {"{'scheduler': {'type': 'warmupLR'}}"},
     {"{'scheduler': {'type': 'StepLR', 'params': {'step_size': 3}}}"}},
    {"/scheduler/params/total_num_steps; expected an integer with WarmupDecayLR",
     {"{'scheduler': {'type': 'WarmupDecayLR'}}"},
     {"{'scheduler': {'type': 'WarmupDecayLR', 'params': {'total_num_steps': 'auto'}}}"}},
    {"/scheduler/params/cycle_max_lr; expected cycle_min_lr and cycle_max_lr with OneCycle",
     {"{'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0}}}"},
     {"{'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0, 'cycle_max_lr': 1}}}"}},
    {"/scheduler/params/total_num_steps; DeepSpeed expects at least",
     {"{'scheduler': {'type': 'WarmupDecayLR', 'params': {'total_num_steps': 9}}}"},
     {"{'scheduler': {'type': 'WarmupDecayLR', 'params': {'total_num_steps': 9,"
      " 'warmup_num_steps': 9}}}"}},
    {"/scheduler/params/cycle_momentum; DeepSpeed cycles betas, and this optimizer has none:",
     {"{'optimizer': {'type': 'SGD'},"
      " 'scheduler': {'type': 'OneCycle', 'params': {'cycle_min_lr': 0, 'cycle_max_lr': 1}}}"},
     {"{'optimizer': {'type': 'SGD'}, 'scheduler': {'type': 'OneCycle',"
      " 'params': {'cycle_min_lr': 0, 'cycle_max_lr': 1, 'cycle_momentum': false}}}"}},
    {"/fp16/loss_scale_window; expected an integer >= 1 while /fp16/loss_scale is 0",
     {"{'fp16': {'enabled': true, 'loss_scale_window': 0}}"},
     {"{'fp16': {'enabled': true, 'loss_scale_window': 0, 'loss_scale': 2}}"}},
    {"/fp16/min_loss_scale; expected a number > 0 while /fp16/loss_scale is 0",
     {"{'fp16': {'enabled': true, 'min_loss_scale': 0}}"},
     {"{'fp16': {'enabled': false, 'min_loss_scale': 0}}"}},
    {"/optimizer/params/max_coeff; expected at least /optimizer/params/min_coeff",
     {"{'optimizer': {'type': 'Lamb', 'params': {'max_coeff': 0.001}}}"},
     {"{'optimizer': {'type': 'Lamb', 'params': {'max_coeff': 0.001, 'min_coeff': 0}}}"}},
    {"/optimizer/params/max_grad_norm; expected /gradient_clipping in its place",
     {"{'optimizer': {'type': 'Lamb', 'params': {'max_grad_norm': 1}}}",
      "{'optimizer': {'type': 'Adam', 'params': {'max_grad_norm': 1.0}}}"},
     {"{'optimizer': {'type': 'Lamb', 'params': {'max_coeff': 1}}}"}},
    {"/optimizer/params/adam_w_mode; DeepSpeed ignores it for AdamW",
     {"{'optimizer': {'type': 'AdamW', 'params': {'adam_w_mode': false}}}"},
     {"{'optimizer': {'type': 'Adam', 'params': {'adam_w_mode': false}}}"}},
    {"/optimizer/params/nesterov; expected false unless /optimizer/params/momentum is above 0",
     {"{'optimizer': {'type': 'SGD', 'params': {'nesterov': true}}}"},
     {"{'optimizer': {'type': 'SGD', 'params': {'nesterov': true, 'momentum': 0.9}}}"}},
    {"/fp16/loss_scale; expected 0 (dynamic) with Lamb",
     {"{'optimizer': {'type': 'Lamb'}, 'fp16': {'enabled': true, 'loss_scale': 128}}"},
     {"{'optimizer': {'type': 'Lamb'}, 'fp16': {'enabled': true, 'loss_scale': 0}}"}},
    {"/gradient_predivide_factor; expected 1.0 at ZeRO stages 2 and 3",
     {"{'gradient_predivide_factor': 2, 'zero_optimization': {'stage': 2}}",
      "{'gradient_predivide_factor': 2, 'zero_optimization': {'stage': 3}}"},
     {"{'gradient_predivide_factor': 2,"
      " 'zero_optimization': {'stage': 2, 'reduce_scatter': false}}"}},
    {"/prescale_gradients; expected false at ZeRO stages 2 and 3",
     {"{'prescale_gradients': true, 'zero_optimization': {'stage': 3}}",
      "{'prescale_gradients': true, 'zero_optimization': {'stage': 2}}"},
     {"{'prescale_gradients': true, 'zero_optimization': {'stage': 1}}"}},
    {"/gradient_allreduce_op; expected \"mean\" at ZeRO stage 3, with /zero_optimization/zenflow",
     {"{'gradient_allreduce_op': 'sum', 'zero_optimization': {'stage': 3}}",
      "{'gradient_allreduce_op': 'sum', 'compile': {'deepcompile': true}}"},
     {"{'gradient_allreduce_op': 'sum', 'zero_optimization': {'stage': 2}}"}},
    {"/managed_gradient_accumulation; expected true with /amp/enabled, /compile/deepcompile",
     {"{'managed_gradient_accumulation': false, 'amp': {'enabled': true}}",
      "{'managed_gradient_accumulation': false, 'pipeline': {'stages': 2}}",
      "{'managed_gradient_accumulation': false, 'compile': {'deepcompile': true}}"},
     {"{'managed_gradient_accumulation': false}"}},
    {"/managed_gradient_accumulation; expected true with /zero_optimization/overlap_comm below",
     {"{'managed_gradient_accumulation': false, 'zero_optimization': {'overlap_comm': true}}",
      "{'managed_gradient_accumulation': false,"
      " 'zero_optimization': {'stage': 1, 'overlap_comm': true}}"},
     {"{'managed_gradient_accumulation': false,"
      " 'zero_optimization': {'stage': 2, 'overlap_comm': true}}"}},
    {"/zero_optimization/legacy_stage1; expected false: DeepSpeed dropped it",
     {"{'zero_optimization': {'legacy_stage1': true}}",
      "{'zero_optimization': {'stage': 1, 'legacy_stage1': true}}"},
     {"{'zero_optimization': {'legacy_stage1': false}}"}},
    {"/zero_optimization/offload_optimizer/nvme_path; expected a folder, since the device",
     {"{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'nvme'}}}",
      "{'zero_optimization': {'stage': 3, 'offload_optimizer': {'device': 'nvme'}}}"},
     {"{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'nvme',"
      " 'nvme_path': '/n'}}, 'optimizer': {'type': 'Adam'}}"}},
    {"/zero_optimization/offload_param/nvme_path; expected a folder, since the device is \"nvme\"",
     {"{'zero_optimization': {'stage': 3, 'offload_param': {'device': 'nvme'}}}"},
     {"{'zero_optimization': {'stage': 3, 'offload_param': {'device': 'nvme',"
      " 'nvme_path': '/n'}}}"}},
    {"/zero_optimization/offload_optimizer/ratio; expected 1.0 below ZeRO stage 3",
     {"{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu',"
      " 'ratio': 0.5}}}"},
     {"{'zero_optimization': {'stage': 3, 'offload_optimizer': {'device': 'cpu',"
      " 'ratio': 0.5}}, 'optimizer': {'type': 'Adam'}}"}},
    {"/zero_optimization/offload_optimizer/device; expected \"none\", or ZeRO stage 1 or above: "
     "DeepSpeed ignores it below",
     {"{'zero_optimization': {'offload_optimizer': {'device': 'cpu'}}}",
      "{'zero_optimization': {'stage': 0, 'offload_optimizer': {'device': 'cpu'}}}"},
     {"{'zero_optimization': {'stage': 1, 'offload_optimizer': {'device': 'cpu'}},"
      " 'optimizer': {'type': 'Adam'}}"}},
    {"/zero_optimization/offload_param/device; expected \"none\", or ZeRO stage 3: DeepSpeed "
     "ignores it below",
     {"{'zero_optimization': {'stage': 2, 'offload_param': {'device': 'cpu'}}}",
      "{'zero_optimization': {'stage': 2, 'offload_param': {'device': 'nvme',"
      " 'nvme_path': '/n'}}}"},
     {"{'zero_optimization': {'stage': 3, 'offload_param': {'device': 'cpu'}}}"}},
    {"/zero_optimization/contiguous_gradients; taken as true, as in DeepSpeed: ZeRO stages 1",
     {"{'zero_optimization': {'stage': 2, 'contiguous_gradients': false, 'cpu_offload': true},"
      " 'optimizer': {'type': 'Adam'}}",
      "{'zero_optimization': {'stage': 2, 'contiguous_gradients': false,"
      " 'offload_optimizer': {'device': 'cpu'}}, 'optimizer': {'type': 'AdamW'}}"},
     {"{'zero_optimization': {'stage': 3, 'contiguous_gradients': false, 'cpu_offload': true},"
      " 'optimizer': {'type': 'Adam'}}"}},
    {"/optimizer/type; DeepSpeed offloads an optimizer that the script makes only if it",
     {"{'zero_optimization': {'stage': 2, 'cpu_offload': true}}",
      "{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}"},
     {"{'zero_optimization': {'stage': 2, 'cpu_offload': true},"
      " 'zero_force_ds_cpu_optimizer': false}"}},
    {"/zero_optimization/overlap_comm; taken as false, as in DeepSpeed: a pipeline",
     {"{'zero_optimization': {'stage': 1, 'overlap_comm': true}, 'pipeline': {'stages': 2}}"},
     {"{'zero_optimization': {'stage': 1, 'overlap_comm': true}, 'pipeline': {'stages': 1}}"}},
    {"/elasticity/enabled; expected false: elastic batch sizes replace a trial's",
     {"{'elasticity': {'enabled': true}}"},
     {"{'elasticity': {'enabled': false, 'max_train_batch_size': 2000}}"}},
    {"/expert_parallel/enabled; expected false with /tensor_parallel/autotp_size above 1,",
     {"{'expert_parallel': {'enabled': true}, 'tensor_parallel': {'autotp_size': 2}}",
      "{'expert_parallel': {'enabled': true, 'autoep_size': 2},"
      " 'tensor_parallel': {'autotp_size': 2}, 'compile': {'deepcompile': true}}"},
     {"{'expert_parallel': {'enabled': true, 'autoep_size': 2},"
      " 'tensor_parallel': {'autotp_size': 2}}",
      "{'expert_parallel': {'enabled': true, 'autoep_size': 2},"
      " 'compile': {'deepcompile': true}}"}},
    {"/expert_parallel/enabled; expected false at ZeRO stage 3 with /sequence_parallel_size,",
     {"{'expert_parallel': {'enabled': true, 'autoep_size': 2}, 'sequence_parallel_size': 2,"
      " 'zero_optimization': {'stage': 3}}"},
     {"{'expert_parallel': {'enabled': true, 'autoep_size': 2}, 'sequence_parallel_size': 2}"}},
    {"/expert_parallel/enabled; expected false at ZeRO stages 1 and 2 without",
     {"{'expert_parallel': {'enabled': true},"
      " 'zero_optimization': {'stage': 2, 'contiguous_gradients': false}}",
      "{'expert_parallel': {'enabled': true},"
      " 'zero_optimization': {'stage': 1, 'reduce_scatter': false}}"},
     {"{'expert_parallel': {'enabled': true},"
      " 'zero_optimization': {'stage': 1, 'contiguous_gradients': false}}",
      "{'expert_parallel': {'enabled': true},"
      " 'zero_optimization': {'stage': 3, 'reduce_scatter': false}}"}},
};

// All findings of both launch targets.
std::vector<std::string> Findings(const Json& config) {
  try {
    return ValidateDsConfig(config, "ds.json", 2).warnings;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return {error.what()};
  }
}

TEST(RulesTest, EveryRuleFiresAndOnlyThenWithKeyValueAndWayOut) {
  std::set<const Rule*> seen;
  for (const RuleCase& c : kRuleCases) {
    const std::string finding = c.finding;
    const std::string pointer = finding.substr(0, finding.find("; "));
    std::string text = finding.substr(pointer.size() + 2);
    for (const Rule& rule : Rules()) {
      if (rule.pointer != pointer || !std::string_view(rule.text).starts_with(text)) continue;
      text = rule.text;
      seen.insert(&rule);
    }
    for (const char* broken : c.broken) {
      const Json config = With(broken);
      const Json::json_pointer at(pointer);
      const std::string value = config.contains(at) ? config.at(at).dump() : "not given";
      EXPECT_THAT(Findings(config),
                  testing::ElementsAre(fmt::format("ds.json: {} is {}; {}", pointer, value, text)))
          << broken;
    }
    for (const char* kept : c.kept)
      EXPECT_THAT(Findings(With(kept)), IsEmpty()) << kept;
  }
  EXPECT_EQ(seen.size(), Rules().size());
}

TEST(RulesTest, AKeyUnderTwoNamesIsRefused) {
  EXPECT_THAT(Refusal(With("{'bf16': {}, 'bfloat16': {'enabled': true}}")), HasSubstr("/bfloat16"));
  EXPECT_THAT(Refusal(With("{'zero_optimization': {'max_live_parameters': 1,"
                           " 'stage3_max_live_parameters': 1}}")),
              HasSubstr("are the same key"));
  EXPECT_THAT(Refusal(With("{'zero_optimization': {'stage': 2, 'cpu_offload': true,"
                           " 'offload_optimizer': {'device': 'cpu'}}}")),
              HasSubstr("/zero_optimization/cpu_offload is deprecated"));
  EXPECT_NO_THROW(ValidateDsConfig(With("{'zero_optimization': {'stage': 2, 'cpu_offload': false,"
                                        " 'offload_optimizer': {'device': 'cpu'}}}"),
                                   "ds.json", 2));
}

}  // namespace
}  // namespace dsat::engine
