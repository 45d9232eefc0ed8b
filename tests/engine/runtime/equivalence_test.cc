// Every plan ends with stage 0's parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/files/safetensors.h"
#include "tests/engine/backend/relative_distance.h"
#include "tests/engine/runtime/expect_same_bits.h"
#include "tests/engine/runtime/training.h"
#include "tests/sanitizers.h"

namespace dsat::engine {
namespace {

constexpr int kSteps = 3;
constexpr int64_t kSmallBucket = 4000;  // Elements: a few calls per unit.

struct Case {
  DType dtype;
  int world_size;
  int64_t accumulation_steps;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int world_size : {1, 2, 4}) {
      // movement_test has each type at every number of ranks.
      if (dtype != DType::kF32 && world_size != 2) continue;
      for (const int64_t accumulation_steps : {1, 3}) {
        cases.push_back({dtype, world_size, accumulation_steps});
      }
    }
  }
  return cases;
}

// Every setting that may change when and in which portions state is moved.
std::vector<ZeroConfig> Movements(int stage) {
  std::vector<ZeroConfig> all;
  for (int bits = 0; bits < 32; ++bits) {
    ZeroConfig zero = TinyConfig(stage, 1, 1).zero;
    const int64_t bucket = (bits & 1) != 0 ? 1'000'000 : kSmallBucket;
    zero.reduce_bucket_size = bucket;
    zero.allgather_bucket_size = bucket;
    zero.overlap_comm = (bits & 2) != 0;
    zero.contiguous_gradients = (bits & 4) != 0;
    zero.reduce_scatter = (bits & 8) != 0;
    zero.stage3_prefetch_bucket_size = (bits & 16) != 0 ? 20'000 : 0;
    zero.stage3_param_persistence_threshold = (bits & 16) != 0 ? 100 : 0;
    // Prefetch and persistence are stage 3's, and have nothing to do with how gradients are
    // reduced.
    const bool plain_gradients = zero.contiguous_gradients && zero.reduce_scatter;
    if ((bits & 16) == 0 || (stage == 3 && plain_gradients)) all.push_back(zero);
  }
  return all;
}

std::string Describe(const Case& c, const ZeroConfig& zero) {
  return fmt::format(
      "{} ranks {} accumulation {} stage {} buckets {} overlap {} contiguous {} "
      "reduce_scatter {} prefetch {}",
      SafetensorsName(c.dtype), c.world_size, c.accumulation_steps, zero.stage,
      zero.reduce_bucket_size, zero.overlap_comm, zero.contiguous_gradients, zero.reduce_scatter,
      zero.stage3_prefetch_bucket_size);
}

DsConfig ConfigOf(const Case& c, const ZeroConfig& zero) {
  DsConfig config = TinyConfig(zero.stage, c.world_size, c.accumulation_steps);
  SetPrecision(config, c.dtype);
  config.zero = zero;
  return config;
}

// With one micro-batch, gradients are summed over the ranks in the same order everywhere: the same
// bits. With several, stages 2 and 3 sum over the ranks first: the same bits as each other.
TEST(EquivalenceTest, EveryMovementOfStateGivesTheSameBits) {
  const Model model = TinyGpt2();
  for (const Case& c : Cases()) {
    // bf16 does what f32 does, and movement_test has f16.
    if (IsSanitized() && c.dtype != DType::kBF16) continue;
    std::vector<float> references[2];
    for (int stage = 0; stage <= 3; ++stage) {
      std::vector<float>& reference = references[c.accumulation_steps > 1 && stage >= 2 ? 1 : 0];
      for (const ZeroConfig& zero : Movements(stage)) {
        if (c.world_size == 1 && !reference.empty() && zero.reduce_bucket_size == kSmallBucket)
          continue;
        const DsConfig config = ConfigOf(c, zero);
        const auto runs = Train(model, config, c.world_size, NumStepsFor(config));
        ASSERT_FALSE(runs[0].steps.back().skipped);
        const std::vector<float> params = WholeParams(model, runs);
        if (reference.empty()) reference = params;
        ASSERT_EQ(params, reference) << Describe(c, zero);
      }
    }
  }
}

// On a GPU, GELU may be computed from numbers that are not rounded yet.
TEST(EquivalenceTest, OutputsThatAreKeptHaveTheBitsOfThoseThatAreComputedAgain) {
  for (const bool gelu : {true, false}) {
    const Model model = gelu ? TinyGpt2() : TinyLlama();
    const double most = gelu && TestDeviceKind() == DeviceKind::kCuda ? 1e-2 : 0;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      DsConfig config = TinyConfig(2, 2, 2);
      SetPrecision(config, dtype);
      const auto again = WholeParams(model, Train(model, config, 2, kSteps));
      for (const int64_t interval : {0, 2}) {
        config.activation = {.checkpoint_interval = interval, .keeps_outputs = true};
        const auto kept = WholeParams(model, Train(model, config, 2, kSteps));
        EXPECT_LE(RelativeDistance(kept, again), most) << interval;
      }
    }
  }
}

// SGD: unlike Adam's, its update is a smooth function of the gradient, so that another order of
// summation stays a rounding error.
DsConfig SgdConfig(int stage, int world_size, int64_t accumulation_steps) {
  DsConfig config = TinyConfig(stage, world_size, accumulation_steps);
  config.optimizer.type = "sgd";
  config.optimizer.lr = 0.1;
  config.optimizer.momentum = 0.9;
  config.gradient_clipping = 0.5;
  return config;
}

TEST(EquivalenceTest, AnySplitOfTheBatchTrainsAsOneRankDoes) {
  for (const Model& model : {TinyGpt2(), TinyMlp()}) {
    const auto reference = Train(model, SgdConfig(0, 1, 1), 1, kSteps);
    const std::vector<float> params = WholeParams(model, reference);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int world_size : {1, 2, 4}) {
        for (const int64_t accumulation_steps : {1, 3}) {
          const DsConfig config = SgdConfig(stage, world_size, accumulation_steps);
          const auto runs = Train(model, config, world_size, kSteps);
          EXPECT_LT(RelativeDistance(WholeParams(model, runs), params), 1e-5)
              << stage << " " << world_size << " " << accumulation_steps;
          for (int step = 0; step < kSteps; ++step) {
            EXPECT_NEAR(runs[0].steps[step].loss, reference[0].steps[step].loss, 1e-5);
            EXPECT_NEAR(runs[0].steps[step].grad_norm, reference[0].steps[step].grad_norm, 1e-4);
          }
        }
      }
    }
  }
}

TEST(EquivalenceTest, HalfPrecisionsFollowF32) {
  const Model model = TinyGpt2();
  DsConfig config = SgdConfig(0, 1, 1);
  const std::vector<float> f32 = WholeParams(model, Train(model, config, 1, kSteps));
  config.bf16 = true;
  const std::vector<float> bf16 = WholeParams(model, Train(model, config, 1, kSteps));
  config.bf16 = false;
  config.fp16 = {.enabled = true, .loss_scale = 1024};
  const std::vector<float> f16 = WholeParams(model, Train(model, config, 1, kSteps));
  EXPECT_LT(RelativeDistance(bf16, f32), 1e-2);
  EXPECT_GT(RelativeDistance(bf16, f32), 1e-5);
  EXPECT_LT(RelativeDistance(f16, f32), 1e-3);
  EXPECT_GT(RelativeDistance(f16, f32), 1e-6);
}

// A large learning rate: what an optimizer does wrong shows within three steps.
DsConfig OptimizerCase(const std::string& type, DType dtype) {
  DsConfig config;
  config.optimizer.type = type;
  config.optimizer.lr = 0.01;
  config.optimizer.weight_decay = 0.1;
  config.optimizer.momentum = 0.9;
  config.optimizer.adam_w_mode = false;
  config.optimizer.decay_norms_and_biases = dtype == DType::kF32;  // Both ways.
  SetPrecision(config, dtype);
  return config;
}

TEST(EquivalenceTest, EveryOptimizerGivesTheSameBitsAtEveryStage) {
  const Model model = TinyGpt2();
  for (const char* type : {"adam", "sgd", "lamb", "adagrad", "lion"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int world_size : {2, 4}) {
        std::vector<float> reference;
        std::string skips;
        for (int stage = 0; stage <= 3; ++stage) {
          const DsConfig tiny = TinyConfig(stage, world_size, 1);
          DsConfig config = OptimizerCase(type, dtype);
          config.batch = tiny.batch;
          config.zero = tiny.zero;
          const auto runs = Train(model, config, world_size, NumStepsFor(config) + 1);
          const std::vector<float> params = WholeParams(model, runs);
          if (stage == 0) {
            reference = params;
            skips = Skips(runs[0]);
            EXPECT_EQ(skips.front(), dtype == DType::kF16 ? 'x' : '.');
            EXPECT_GE(std::ranges::count(skips, '.'), 2);
          }
          EXPECT_EQ(Skips(runs[0]), skips);
          EXPECT_EQ(params, reference) << type << " " << stage << " of " << world_size << " ranks";
        }
      }
    }
  }
}

// State in host memory, updated in sub-groups that cut parameters; and disk, for who does without
// a second look at it.
TEST(EquivalenceTest, EveryOptimizerGivesTheSameBitsOnEveryTier) {
  const Model model = TinyGpt2();
  for (const char* type : {"adam", "sgd", "lamb", "adagrad", "lion"}) {
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      DsConfig config = OptimizerCase(type, dtype);
      config.batch = TinyConfig(2, 2, 1).batch;
      config.zero = TinyConfig(2, 2, 1).zero;
      const int num_steps = NumStepsFor(config) + 1;
      const auto plain = Train(model, config, 2, num_steps);
      const std::vector<float> expected = WholeParams(model, plain);
      EXPECT_GE(std::ranges::count(Skips(plain[0]), '.'), 3);
      config.zero.sub_group_size = 500;
      for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
        if (tier == Tier::kNvme && config.optimizer.type == "lamb") continue;
        config.zero.offload_optimizer.tier = tier;
        config.zero.offload_optimizer.nvme_path = testing::TempDir();
        SCOPED_TRACE(type);
        ExpectSameBits(WholeParams(model, Train(model, config, 2, num_steps)), expected, config);
      }
    }
  }
}

// With and without bf16 moments: DeepSpeed wants stage 1 at least, or offload.
std::vector<DsConfig> Bf16StateConfigs(int world_size) {
  DsConfig config = OptimizerCase("adamw", DType::kBF16);
  config.batch = TinyConfig(1, world_size, 1).batch;
  config.zero = TinyConfig(1, world_size, 1).zero;
  config.bf16_master_weights_and_grads = true;
  std::vector<DsConfig> configs(2, config);
  configs[1].bf16_optimizer_states = true;
  return configs;
}

// Gives the parameters.
std::vector<float> ExpectSameBitsAtEveryStageAndOnEveryTier(DsConfig config, int world_size) {
  const Model model = TinyGpt2();
  std::vector<float> expected = WholeParams(model, Train(model, config, world_size, kSteps));
  for (const int stage : {1, 2, 3}) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
      for (const Tier param_tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
        if (stage < 3 && param_tier != Tier::kDevice) continue;
        config.zero.stage = stage;
        config.zero.sub_group_size = 501;  // Odd: what is 4 bytes wide lies at multiples of 4.
        config.zero.offload_optimizer = {.tier = tier, .nvme_path = testing::TempDir()};
        config.zero.offload_param = {.tier = param_tier, .nvme_path = testing::TempDir()};
        config.zero.offload_param.max_in_cpu = 0;
        const auto runs = Train(model, config, world_size, kSteps);
        SCOPED_TRACE(fmt::format("{} ranks, stage {}, tiers {} and {}", world_size, stage,
                                 static_cast<int>(tier), static_cast<int>(param_tier)));
        ExpectSameBits(WholeParams(model, runs), expected, config);
      }
    }
  }
  return expected;
}

TEST(EquivalenceTest, Bf16StateGivesTheSameBitsAtEveryStageAndOnEveryTier) {
  for (const int world_size : {1, 2}) {
    for (const DsConfig& config : Bf16StateConfigs(world_size))
      ExpectSameBitsAtEveryStageAndOnEveryTier(config, world_size);
  }
}

// With an f32 master copy, and without.
TEST(EquivalenceTest, StochasticRoundingGivesTheSameBitsAtEveryStageAndOnEveryTier) {
  for (const int world_size : {1, 2}) {
    for (DsConfig& config : Bf16StateConfigs(world_size)) {
      config.bf16_master_weights_and_grads = config.bf16_optimizer_states;
      config.optimizer.stochastic_rounding = true;
      const std::vector<float> params =
          ExpectSameBitsAtEveryStageAndOnEveryTier(config, world_size);
      config.optimizer.stochastic_rounding = false;
      const Model model = TinyGpt2();
      const auto nearest = Train(model, config, world_size, kSteps);
      EXPECT_NE(WholeParams(model, nearest), params);
      EXPECT_LT(RelativeDistance(WholeParams(model, nearest), params), 2e-2);
    }
  }
}

TEST(EquivalenceTest, PipelineStagesRoundWhatBothHoldAlike) {
  const Model model = TinyGpt2();
  DsConfig config = Bf16StateConfigs(1)[1];
  config.batch = TinyConfig(1, 1, 3).batch;
  config.optimizer.stochastic_rounding = true;
  config.pipeline.num_stages = 2;
  const auto runs = Train(model, config, 2, kSteps);
  ASSERT_FALSE(runs[0].params[0].empty());
  EXPECT_EQ(runs[0].params[0], runs[1].params[0]);  // The tied embedding.
}

TEST(EquivalenceTest, Bf16StateFollowsF32State) {
  const Model model = TinyGpt2();
  for (DsConfig config : Bf16StateConfigs(2)) {
    config.optimizer.lr = 0.001;
    const std::vector<float> bf16 = WholeParams(model, Train(model, config, 2, kSteps));
    config.bf16_master_weights_and_grads = config.bf16_optimizer_states = false;
    const std::vector<float> f32 = WholeParams(model, Train(model, config, 2, kSteps));
    EXPECT_LT(RelativeDistance(bf16, f32), 1e-2);
    EXPECT_GT(RelativeDistance(bf16, f32), 1e-6);
  }
}

void ExpectStagesTrainAsOneRank(DsConfig config, const std::vector<int>& stages, double tolerance) {
  const Model model = TinyGpt2();
  config.batch = TinyConfig(0, 1, 3).batch;
  const auto one = Train(model, config, 1, kSteps);
  config.pipeline.num_stages = 2;
  for (const int stage : stages) {
    config.zero.stage = stage;
    const auto runs = Train(model, config, 2, kSteps);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_NEAR(runs[0].steps[step].loss, one[0].steps[step].loss, tolerance) << stage << step;
  }
}

TEST(EquivalenceTest, PipelineStagesTrainAsOneRankDoesWithBf16StateAndWithLamb) {
  for (const DsConfig& config : Bf16StateConfigs(1))
    ExpectStagesTrainAsOneRank(config, {1}, 1e-3);
  DsConfig lamb = TinyConfig(0, 1, 3);
  lamb.optimizer.type = "lamb";
  ExpectStagesTrainAsOneRank(lamb, {0, 1}, 1e-4);
}

TEST(EquivalenceTest, LambsTrustRatioIsOfWholeParameters) {
  const Model model = TinyGpt2();
  DsConfig config = TinyConfig(0, 1, 1);
  config.optimizer.type = "lamb";
  const std::vector<float> one = WholeParams(model, Train(model, config, 1, kSteps));
  config = TinyConfig(2, 4, 1);
  config.optimizer.type = "lamb";
  const std::vector<float> four = WholeParams(model, Train(model, config, 4, kSteps));
  EXPECT_LT(RelativeDistance(four, one), 1e-4);
  config.optimizer.max_coeff = config.optimizer.min_coeff = 1;  // No ratio: another training.
  const std::vector<float> plain = WholeParams(model, Train(model, config, 4, kSteps));
  EXPECT_GT(RelativeDistance(plain, one), 1e-3);
}

TEST(EquivalenceTest, RanksAgreeOnReplicatedParameters) {
  const Model model = TinyGpt2();
  for (const int stage : {0, 1, 2}) {
    const auto runs = Train(model, TinyConfig(stage, 4, 1), 4, kSteps);
    for (const RankRun& run : runs)
      EXPECT_EQ(run.params, runs[0].params) << stage;
  }
}

}  // namespace
}  // namespace dsat::engine
