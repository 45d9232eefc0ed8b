// dsat says everything that DeepSpeed 0.19 asserts about several keys together (runtime/engine.py,
// runtime/config.py, runtime/zero, runtime/pipe) before anything is launched, with key, value and
// way out. An assertion about a script's own calls (an mpu beside a pipeline, no_sync at stages 2
// and 3, a mixture of experts at stage 3) has no key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/config/ds_config.h"
#include "tests/engine/config/ds_config_testing.h"

namespace dsat::engine {
namespace {

struct Case {
  const char* config;
  const char* message;  // Whole, without the file's name.
};

// All findings of both launch targets, without the file's name.
std::vector<std::string> Findings(const Json& config) {
  std::vector<std::string> findings;
  try {
    findings = ValidateDsConfig(config, "ds.json", 2);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    findings = {error.what()};
  }
  for (std::string& finding : findings)
    finding = finding.substr(std::string("ds.json: ").size());
  return findings;
}

constexpr Case kRefused[] = {
    // Pipelines.
    {"{'pipeline': {'stages': 2}, 'zero_optimization': {'stage': 2}}",
     "/pipeline/stages is 2; expected 1 with ZeRO stages 2 and 3, or a lower stage"},
    {"{'pipeline': {'stages': 2}, 'zero_optimization': {'stage': 3}}",
     "/pipeline/stages is 2; expected 1 with ZeRO stages 2 and 3, or a lower stage"},
    {"{'pipeline': {'stages': 2}, 'optimizer': {'type': 'OneBitAdam'}}",
     "/optimizer/type is \"OneBitAdam\"; expected another optimizer in a pipeline"},
    // Optimizers.
    {"{'optimizer': {'type': 'OneBitAdam'}, 'zero_optimization': {'stage': 1}}",
     "/optimizer/type is \"OneBitAdam\"; expected another optimizer: 1-bit optimizers exclude "
     "ZeRO"},
    {"{'optimizer': {'type': 'ZeroOneAdam'}, 'zero_optimization': {'stage': 2}}",
     "/optimizer/type is \"ZeroOneAdam\"; expected another optimizer: 1-bit optimizers exclude "
     "ZeRO"},
    {"{'optimizer': {'type': 'OneBitLamb'}, 'zero_optimization': {'stage': 3}}",
     "/optimizer/type is \"OneBitLamb\"; expected another optimizer: 1-bit optimizers exclude "
     "ZeRO"},
    {"{'optimizer': {'type': 'Lamb'}, 'fp16': {'enabled': true, 'loss_scale': 128}}",
     "/fp16/loss_scale is 128; expected 0 (dynamic) with Lamb"},
    {"{'optimizer': {'type': 'SGD'}, 'zero_optimization': {'stage': 2}}",
     "/optimizer/type is \"SGD\"; expected Adam, AdamW, Adagrad, Lion or Muon with ZeRO, or "
     "/zero_allow_untested_optimizer true"},
    {"{'optimizer': {'type': 'Adam', 'params': {'max_grad_norm': 1.0}}}",
     "/optimizer/params/max_grad_norm is 1.0; expected /gradient_clipping in its place"},
    // Precision.
    {"{'fp16': {'enabled': true}, 'bf16': {'enabled': true}}",
     "/fp16/enabled is true; expected false, since /bf16/enabled is true"},
    {"{'amp': {'enabled': true}, 'zero_optimization': {'stage': 1}}",
     "/amp/enabled is true; expected false with ZeRO, /fp16/enabled or /bf16/enabled"},
    {"{'amp': {'enabled': true}, 'fp16': {'enabled': true}}",
     "/amp/enabled is true; expected false with ZeRO, /fp16/enabled or /bf16/enabled"},
    {"{'amp': {'enabled': true}, 'bf16': {'enabled': true}}",
     "/amp/enabled is true; expected false with ZeRO, /fp16/enabled or /bf16/enabled"},
    {"{'fp16': {'enabled': true, 'fp16_master_weights_and_grads': true}}",
     "/fp16/fp16_master_weights_and_grads is true; expected false unless ZeRO offloads Adam or "
     "AdamW to the CPU"},
    {"{'fp16': {'enabled': true, 'fp16_master_weights_and_grads': true},"
     " 'zero_optimization': {'stage': 2}}",
     "/fp16/fp16_master_weights_and_grads is true; expected false unless ZeRO offloads Adam or "
     "AdamW to the CPU"},
    {"{'fp16': {'enabled': true, 'fp16_master_weights_and_grads': true},"
     " 'optimizer': {'type': 'Lion'},"
     " 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}",
     "/fp16/fp16_master_weights_and_grads is true; expected false unless ZeRO offloads Adam or "
     "AdamW to the CPU"},
    {"{'bf16': {'enabled': true, 'bf16_optimizer_states': true},"
     " 'zero_optimization': {'stage': 1}}",
     "/bf16/bf16_optimizer_states is true; expected false unless "
     "/bf16/bf16_master_weights_and_grads is true, with ZeRO stage 1, 2 or 3"},
    {"{'bf16': {'enabled': true, 'bf16_master_weights_and_grads': true,"
     " 'bf16_optimizer_states': true}}",
     "/bf16/bf16_optimizer_states is true; expected false unless "
     "/bf16/bf16_master_weights_and_grads is true, with ZeRO stage 1, 2 or 3"},
    {"{'bf16': {'enabled': true, 'bf16_master_weights_and_grads': true},"
     " 'zero_optimization': {'stage': 1}}",
     "/bf16/bf16_master_weights_and_grads is true; expected false unless ZeRO offloads Adam or "
     "AdamW to the CPU, or /bf16/bf16_optimizer_states is true"},
    // Gradients.
    {"{'gradient_predivide_factor': 2, 'zero_optimization': {'stage': 2}}",
     "/gradient_predivide_factor is 2; expected 1.0 at ZeRO stages 2 and 3 with "
     "/zero_optimization/reduce_scatter"},
    {"{'gradient_predivide_factor': 2, 'zero_optimization': {'stage': 3}}",
     "/gradient_predivide_factor is 2; expected 1.0 at ZeRO stages 2 and 3 with "
     "/zero_optimization/reduce_scatter"},
    {"{'prescale_gradients': true, 'zero_optimization': {'stage': 2}}",
     "/prescale_gradients is true; expected false at ZeRO stages 2 and 3 with "
     "/zero_optimization/reduce_scatter"},
    {"{'prescale_gradients': true, 'zero_optimization': {'stage': 3}}",
     "/prescale_gradients is true; expected false at ZeRO stages 2 and 3 with "
     "/zero_optimization/reduce_scatter"},
    {"{'gradient_allreduce_op': 'sum', 'zero_optimization': {'stage': 3}}",
     "/gradient_allreduce_op is \"sum\"; expected \"mean\" at ZeRO stage 3, with "
     "/zero_optimization/zenflow or /compile/deepcompile"},
    {"{'gradient_allreduce_op': 'sum', 'compile': {'deepcompile': true}}",
     "/gradient_allreduce_op is \"sum\"; expected \"mean\" at ZeRO stage 3, with "
     "/zero_optimization/zenflow or /compile/deepcompile"},
    {"{'managed_gradient_accumulation': false, 'pipeline': {'stages': 2}}",
     "/managed_gradient_accumulation is false; expected true with /amp/enabled, "
     "/compile/deepcompile or more than one of /pipeline/stages"},
    {"{'managed_gradient_accumulation': false, 'compile': {'deepcompile': true}}",
     "/managed_gradient_accumulation is false; expected true with /amp/enabled, "
     "/compile/deepcompile or more than one of /pipeline/stages"},
    {"{'managed_gradient_accumulation': false, 'amp': {'enabled': true}}",
     "/managed_gradient_accumulation is false; expected true with /amp/enabled, "
     "/compile/deepcompile or more than one of /pipeline/stages"},
    {"{'managed_gradient_accumulation': false,"
     " 'zero_optimization': {'stage': 1, 'overlap_comm': true}}",
     "/managed_gradient_accumulation is false; expected true with /zero_optimization/overlap_comm "
     "below ZeRO stage 2"},
    // Offload.
    {"{'zero_optimization': {'stage': 0, 'offload_optimizer': {'device': 'cpu'}}}",
     "/zero_optimization/offload_optimizer/device is \"cpu\"; expected \"none\", or ZeRO stage 1 "
     "or above: DeepSpeed ignores it below"},
    {"{'zero_optimization': {'stage': 2, 'offload_param': {'device': 'nvme',"
     " 'nvme_path': '/n'}}}",
     "/zero_optimization/offload_param/device is \"nvme\"; expected \"none\", or ZeRO stage 3: "
     "DeepSpeed ignores it below"},
    {"{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu', 'ratio': 0.5}}}",
     "/zero_optimization/offload_optimizer/ratio is 0.5; expected 1.0 below ZeRO stage 3"},
    {"{'zero_optimization': {'stage': 3, 'offload_optimizer': {'device': 'nvme'}}}",
     "/zero_optimization/offload_optimizer/nvme_path is not given; expected a folder, since the "
     "device is \"nvme\""},
    {"{'zero_optimization': {'stage': 3, 'offload_param': {'device': 'nvme'}}}",
     "/zero_optimization/offload_param/nvme_path is not given; expected a folder, since the "
     "device is \"nvme\""},
    {"{'zero_optimization': {'stage': 1, 'legacy_stage1': true}}",
     "/zero_optimization/legacy_stage1 is true; expected false: DeepSpeed dropped it"},
};

// DeepSpeed runs on with something else than what was asked for, or depends on the script.
constexpr Case kWarned[] = {
    {"{'pipeline': {'stages': 2}, 'zero_optimization': {'stage': 1, 'overlap_comm': true}}",
     "/zero_optimization/overlap_comm is true; taken as false, as in DeepSpeed: a pipeline"},
    {"{'zero_optimization': {'stage': 2, 'contiguous_gradients': false,"
     " 'offload_optimizer': {'device': 'cpu'}}, 'optimizer': {'type': 'AdamW'}}",
     "/zero_optimization/contiguous_gradients is false; taken as true, as in DeepSpeed: ZeRO "
     "stages 1 and 2 offload the optimizer"},
    {"{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}",
     "/optimizer/type is not given; DeepSpeed offloads an optimizer that the script makes only if "
     "it is DeepSpeedCPUAdam or DeepSpeedCPULion, or /zero_force_ds_cpu_optimizer is false"},
    {"{'optimizer': {'type': 'AdamW', 'params': {'adam_w_mode': false}}}",
     "/optimizer/params/adam_w_mode is false; DeepSpeed ignores it for AdamW"},
};

TEST(CompatibilityTest, WhatDeepSpeedRefusesIsRefusedWithKeyValueAndWayOut) {
  for (const Case& c : kRefused)
    EXPECT_THAT(Findings(With(c.config)), testing::ElementsAre(c.message)) << c.config;
}

TEST(CompatibilityTest, WhatDeepSpeedTakesOtherwiseIsNamedInAWarning) {
  for (const Case& c : kWarned)
    EXPECT_THAT(Findings(With(c.config)), testing::ElementsAre(c.message)) << c.config;
}

// Stages 1 and 2 need an optimizer: a DeepSpeed script may bring one, the built-in engine says
// which it takes.
TEST(CompatibilityTest, TheBuiltInEngineNamesTheOptimizerThatItTakes) {
  for (const int stage : {1, 2}) {
    std::vector<std::string> warnings;
    const Json config = With(fmt::format("{{'zero_optimization': {{'stage': {}}}}}", stage));
    EXPECT_EQ(Parse(config, &warnings).optimizer.type, "adamw");
    EXPECT_THAT(warnings,
                testing::ElementsAre("ds.json: /optimizer/type is not given: AdamW with lr 0.001"));
  }
}

// The built-in engine does what a warning says.
TEST(CompatibilityTest, OffloadedGradientsOfStages1And2AreContiguous) {
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
