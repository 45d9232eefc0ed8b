// The built-in engine's typed form of schedules, precision and optimizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/config/ds_config.h"
#include "tests/base/error_code.h"
#include "tests/engine/config/ds_config_testing.h"

namespace dsat::engine {
namespace {

using ::testing::HasSubstr;

DsConfig Parse(const Json& config) {
  return ParseDsConfig(config, "ds.json", 2, nullptr);
}

TEST(ParseTest, EveryKeyOfEverySchedulerArrives) {
  const SchedulerConfig decay = Parse(With(R"({'scheduler': {'type': 'WarmupDecayLR', 'params': {
      'total_num_steps': 2000, 'last_batch_iteration': 5}}})"))
                                    .scheduler;
  EXPECT_EQ(decay.total_num_steps, 2000);
  EXPECT_EQ(decay.last_batch_iteration, 5);
  EXPECT_EQ(decay.warmup_max_lr, 1e-3);
  const SchedulerConfig cosine = Parse(With(R"({'scheduler': {'type': 'WarmupCosineLR', 'params': {
      'total_num_steps': 2000, 'warmup_min_ratio': 0.25, 'cos_min_ratio': 0.5}}})"))
                                     .scheduler;
  EXPECT_EQ(cosine.warmup_min_ratio, 0.25);
  EXPECT_EQ(cosine.cos_min_ratio, 0.5);
  const LrRangeTestConfig test = Parse(With(R"({'scheduler': {'type': 'LRRangeTest', 'params': {
      'lr_range_test_min_lr': 0.5, 'lr_range_test_step_size': 3, 'lr_range_test_step_rate': 4,
      'lr_range_test_staircase': true}}})"))
                                     .scheduler.range_test;
  EXPECT_EQ(test.min_lr, 0.5);
  EXPECT_EQ(test.step_size, 3);
  EXPECT_EQ(test.step_rate, 4);
  EXPECT_TRUE(test.staircase);
  const OneCycleConfig cycle = Parse(With(R"({'scheduler': {'type': 'OneCycle', 'params': {
      'cycle_min_lr': 0.1, 'cycle_max_lr': 0.2, 'decay_lr_rate': 0.3, 'cycle_first_step_size': 4,
      'cycle_second_step_size': 5, 'cycle_first_stair_count': 6, 'cycle_second_stair_count': 7,
      'decay_step_size': 8, 'cycle_momentum': false, 'cycle_min_mom': 0.25, 'cycle_max_mom': 0.75,
      'decay_mom_rate': 0.125}}})"))
                                   .scheduler.one_cycle;
  EXPECT_EQ(cycle.min_lr, 0.1);
  EXPECT_EQ(cycle.max_lr, 0.2);
  EXPECT_EQ(cycle.decay_lr_rate, 0.3);
  EXPECT_EQ(cycle.first_step_size, 4);
  EXPECT_EQ(cycle.second_step_size, 5);
  EXPECT_EQ(cycle.first_stair_count, 6);
  EXPECT_EQ(cycle.second_stair_count, 7);
  EXPECT_EQ(cycle.decay_step_size, 8);
  EXPECT_FALSE(cycle.cycle_momentum);
  EXPECT_EQ(cycle.min_mom, 0.25);
  EXPECT_EQ(cycle.max_mom, 0.75);
  EXPECT_EQ(cycle.decay_mom_rate, 0.125);
}

TEST(ParseTest, TheSecondHalfOfACycleIsAsTheFirstUnlessGiven) {
  const OneCycleConfig cycle = Parse(With(R"({'scheduler': {'type': 'OneCycle', 'params': {
      'cycle_min_lr': 0, 'cycle_max_lr': 1, 'cycle_first_step_size': 30,
      'cycle_first_stair_count': 3}}})"))
                                   .scheduler.one_cycle;
  EXPECT_EQ(cycle.second_step_size, 30);
  EXPECT_EQ(cycle.second_stair_count, 3);
  EXPECT_TRUE(cycle.cycle_momentum);
}

TEST(ParseTest, AScheduleThatAutoLeavesOpenIsRefused) {
  const Json config =
      With("{'scheduler': {'type': 'WarmupDecayLR', 'params': {'total_num_steps': 'auto'}}}");
  EXPECT_THAT(RefusalOf([&] { Parse(config); }),
              HasSubstr("/scheduler/params/total_num_steps is \"auto\""));
}

TEST(ParseTest, PrecisionAndItsLossScale) {
  const DsConfig dynamic = Parse(With("{'fp16': {'enabled': true}}"));
  EXPECT_TRUE(dynamic.fp16.enabled);
  EXPECT_TRUE(dynamic.check_grad_overflow);
  EXPECT_EQ(dynamic.fp16.loss_scale, 0);
  EXPECT_EQ(dynamic.fp16.initial_scale_power, 16);
  EXPECT_EQ(dynamic.fp16.loss_scale_window, 1000);
  EXPECT_EQ(dynamic.fp16.hysteresis, 2);
  EXPECT_EQ(dynamic.fp16.min_loss_scale, 1);
  const Fp16Config given = Parse(With(R"({'fp16': {'enabled': true, 'loss_scale': 64,
      'initial_scale_power': 3, 'loss_scale_window': 4, 'hysteresis': 5,
      'consecutive_hysteresis': true, 'min_loss_scale': 6}})"))
                               .fp16;
  EXPECT_EQ(given.loss_scale, 64);
  EXPECT_EQ(given.initial_scale_power, 3);
  EXPECT_EQ(given.loss_scale_window, 4);
  EXPECT_EQ(given.hysteresis, 5);
  EXPECT_TRUE(given.consecutive_hysteresis);
  EXPECT_EQ(given.min_loss_scale, 6);
  const char* unchecked = "{'bf16': {'enabled': true, 'check_grad_overflow': false}}";
  EXPECT_FALSE(Parse(With(unchecked)).check_grad_overflow);
  // It is bf16's: without bf16, steps are always checked.
  EXPECT_TRUE(Parse(With("{'bf16': {'check_grad_overflow': false}}")).check_grad_overflow);
}

// The refusal of `config` with another value at `pointer`.
std::string RefusalWith(Json config, const char* pointer, const char* value) {
  SetAtPointer(config, pointer, J(value));
  return RefusalOf([&] { Parse(config); });
}

TEST(ParseTest, Bf16StateIsOfBf16ModelsAndTheirGradients) {
  const Json both =
      J("{'train_batch_size': 2, 'zero_optimization': {'stage': 1}, 'bf16': {'enabled': true,"
        " 'bf16_master_weights_and_grads': true, 'bf16_optimizer_states': true}}");
  EXPECT_EQ(Parse(both).master_dtype(), DType::kBF16);
  EXPECT_EQ(Parse(both).moment_dtype(), DType::kBF16);
  EXPECT_EQ(Parse(J("{'train_batch_size': 2}")).master_dtype(), DType::kF32);
  EXPECT_EQ(Parse(J("{'train_batch_size': 2}")).moment_dtype(), DType::kF32);
  EXPECT_THAT(RefusalWith(both, "/bf16/enabled", "false"),
              HasSubstr("/bf16/bf16_master_weights_and_grads is true; expected false unless "
                        "/bf16/enabled is"));
  EXPECT_THAT(RefusalWith(both, "/data_types/grad_accum_dtype", "'fp32'"),
              HasSubstr("/data_types/grad_accum_dtype is \"fp32\"; expected \"bf16\", since "
                        "/bf16/bf16_master_weights_and_grads is true"));
}

TEST(ParseTest, StochasticRoundingIsOfBf16ParametersAndAdam) {
  const Json config =
      J("{'train_batch_size': 2, 'bf16': {'enabled': true},"
        " 'optimizer': {'type': 'Adam', 'params': {'stochastic_rounding': true}}}");
  EXPECT_TRUE(Parse(config).optimizer.stochastic_rounding);
  EXPECT_FALSE(Parse(J("{'train_batch_size': 2}")).optimizer.stochastic_rounding);
  EXPECT_THAT(RefusalWith(config, "/bf16/enabled", "false"),
              HasSubstr("/optimizer/params/stochastic_rounding is true; expected false unless "
                        "/bf16/enabled is"));
  EXPECT_THAT(
      RefusalWith(config, "/optimizer/type", "'Lion'"),
      HasSubstr("/optimizer/params/stochastic_rounding is true: \"lion\" does not have it"));
}

TEST(ParseTest, OptimizersHaveTheirOwnKeysAndDefaults) {
  const OptimizerConfig lamb =
      Parse(With("{'optimizer': {'type': 'Lamb', 'params': {'max_coeff': 5, 'min_coeff': 0.5}}}"))
          .optimizer;
  EXPECT_EQ(lamb.type, "lamb");
  EXPECT_EQ(lamb.max_coeff, 5);
  EXPECT_EQ(lamb.min_coeff, 0.5);
  OptimizerConfig adagrad =
      Parse(With("{'optimizer': {'type': 'Adagrad', 'params': {'lr_decay': 0.5}}}")).optimizer;
  EXPECT_EQ(adagrad.lr, 0.01);
  EXPECT_EQ(adagrad.eps, 1e-10);
  EXPECT_EQ(adagrad.lr_decay, 0.5);
  adagrad = Parse(With("{'optimizer': {'type': 'Adagrad', 'params': {'lr': 0.5, 'eps': 1e-3}}}"))
                .optimizer;
  EXPECT_EQ(adagrad.lr, 0.5);
  EXPECT_EQ(adagrad.eps, 1e-3);
  EXPECT_EQ(Parse(With("{'optimizer': {'type': 'Lion'}}")).optimizer.beta2, 0.999);
}

}  // namespace
}  // namespace dsat::engine
