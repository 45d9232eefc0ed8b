// Wherever state rests and however activations are kept, training is the same: every row of the
// table ends with the bits of plain training, and moves and holds what was predicted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "engine/runtime/state/swap_file.h"
#include "tests/base/error_code.h"
#include "tests/engine/runtime/expect_predicted.h"
#include "tests/sanitizers.h"

namespace dsat::engine {
namespace {

struct Row {
  const char* name;
  int min_stage;
  void (*apply)(DsConfig&);
};

void OptimizerOn(DsConfig& config, Tier tier) {
  config.zero.offload_optimizer.tier = tier;
  config.zero.offload_optimizer.nvme_path = std::filesystem::temp_directory_path();
  config.zero.sub_group_size = 1000;
}

void ParamsOn(DsConfig& config, Tier tier) {
  config.zero.offload_param.tier = tier;
  config.zero.offload_param.nvme_path = std::filesystem::temp_directory_path();
  config.zero.offload_param.max_in_cpu = 3000;  // There are 17 thousand elements.
}

constexpr Row kRows[] = {
    {"sub-groups", 0, [](DsConfig& c) { c.zero.sub_group_size = 500; }},
    {"small buckets, overlapped, prefetched", 0,
     [](DsConfig& c) {
       c.zero.reduce_bucket_size = c.zero.allgather_bucket_size = 1000;
       c.zero.overlap_comm = true;
       c.zero.stage3_prefetch_bucket_size = 10'000;
     }},
    {"broadcasts", 1, [](DsConfig& c) { c.zero.allgather_partitions = false; }},
    {"reuse", 3, [](DsConfig& c) { c.zero.stage3_max_reuse_distance = 1'000'000; }},
    {"some reuse", 3, [](DsConfig& c) { c.zero.stage3_max_reuse_distance = 9000; }},
    {"checkpoints", 0, [](DsConfig& c) { c.activation.checkpoint_interval = 1; }},
    {"segments", 0, [](DsConfig& c) { c.activation.checkpoint_interval = 2; }},
    {"one checkpoint", 0, [](DsConfig& c) { c.activation.num_checkpoints = 1; }},
    {"checkpoints on host", 0,
     [](DsConfig& c) { c.activation = {.checkpoint_interval = 1, .checkpoints_on_host = true}; }},
    {"optimizer on host", 1, [](DsConfig& c) { OptimizerOn(c, Tier::kHost); }},
    {"part of the optimizer on host", 3,
     [](DsConfig& c) {
       OptimizerOn(c, Tier::kHost);
       c.zero.offload_optimizer.ratio = 0.6;
     }},
    {"optimizer on disk", 1, [](DsConfig& c) { OptimizerOn(c, Tier::kNvme); }},
    {"optimizer on disk, pipelined", 1,
     [](DsConfig& c) {
       OptimizerOn(c, Tier::kNvme);
       c.zero.offload_optimizer.pipeline_read = c.zero.offload_optimizer.pipeline_write = true;
       c.zero.offload_optimizer.buffer_count = 20;
     }},
    {"parameters on host", 3, [](DsConfig& c) { ParamsOn(c, Tier::kHost); }},
    {"parameters on disk", 3, [](DsConfig& c) { ParamsOn(c, Tier::kNvme); }},
    {"everything on host", 3,
     [](DsConfig& c) {
       OptimizerOn(c, Tier::kHost);
       ParamsOn(c, Tier::kHost);
       c.activation = {.checkpoint_interval = 1, .checkpoints_on_host = true};
     }},
    {"everything on disk, pipelined, overlapped", 3,
     [](DsConfig& c) {
       OptimizerOn(c, Tier::kNvme);
       ParamsOn(c, Tier::kNvme);
       c.zero.offload_optimizer.pipeline_read = c.zero.offload_optimizer.pipeline_write = true;
       c.zero.overlap_comm = true;
       c.zero.stage3_prefetch_bucket_size = 10'000;
       c.activation.checkpoint_interval = 1;
     }},
};

DsConfig ConfigOf(int stage, int world_size, int64_t accumulation_steps, bool bf16) {
  DsConfig config = TinyConfig(stage, world_size, accumulation_steps);
  config.bf16 = bf16;
  config.gradient_clipping = 0.5;
  return config;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max<double>(largest, std::abs(a[i] - b[i]));
  return largest;
}

// By (P, accumulation, precision).
class MovementTest : public testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(MovementTest, EveryRowTrainsToTheSameBitsAndMovesWhatWasPredicted) {
  const auto [world_size, accumulation_steps, dtype] = GetParam();
  const Model model = TinyGpt2();
  std::string skips;  // On every rank, at every stage and tier.
  for (int stage = 0; stage <= 3; ++stage) {
    DsConfig plain = ConfigOf(stage, world_size, accumulation_steps, false);
    SetPrecision(plain, dtype);
    const int num_steps = NumStepsFor(plain);
    const auto plain_runs = Train(model, plain, world_size, num_steps);
    const std::vector<float> expected = WholeParams(model, plain_runs, plain);
    if (stage == 0) skips = Skips(plain_runs[0]);
    EXPECT_EQ(skips.front(), dtype == DType::kF16 ? 'x' : '.');
    EXPECT_THAT(skips, testing::EndsWith(".."));
    ExpectSkips(plain_runs, skips);
    ExpectPredicted(model, plain, plain_runs);
    // Gradients of several micro-batches that rest sharded are summed apart: other bits, but all
    // alike.
    std::vector<float> expected_apart;
    for (const Row& row : kRows) {
      if (stage < row.min_stage) continue;
      SCOPED_TRACE(fmt::format("{}, stage {}", row.name, stage));
      DsConfig config = plain;
      row.apply(config);
      const auto runs = Train(model, config, world_size, num_steps);
      ExpectSkips(runs, skips);
      const std::vector<float> params = WholeParams(model, runs, config);
      const bool apart = PlanFor(model, config, world_size).grad_home !=
                         PlanFor(model, plain, world_size).grad_home;
      if (apart && expected_apart.empty()) expected_apart = params;
      ASSERT_EQ(params, apart ? expected_apart : expected);
      ExpectPredicted(model, config, runs);
    }
    // Two steps of Adam move no parameter by more than twice the learning rate each way.
    if (!expected_apart.empty()) {
      EXPECT_LT(LargestDifference(expected_apart, expected), 4e-3);
    }
  }
}

// Four ranks take most of the time, which is long under a sanitizer and on other devices.
std::vector<int> NumsOfRanks() {
  const bool is_slow = IsSanitized() || std::getenv("DSAT_TEST_DEVICE") != nullptr;
  return is_slow ? std::vector{1, 2} : std::vector{1, 2, 4};
}

INSTANTIATE_TEST_SUITE_P(Ranks, MovementTest,
                         testing::Combine(testing::ValuesIn(NumsOfRanks()), testing::Values(1, 3),
                                          testing::Values(DType::kF32, DType::kBF16, DType::kF16)));

TEST(MovementTest, AnOffloadedOptimizerMovesGradientsDownAndParametersUp) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(2, 2, 1, true);
  OptimizerOn(config, Tier::kHost);
  const Prediction predicted = Predicted(model, config, 2);
  const int64_t psi = PaddedElems(model, 2);
  // ZeRO-Offload, Ren et al. 2021, section 4: 2 bytes of each element of the slice, both ways.
  EXPECT_EQ(predicted.tier_traffic.to_host_bytes, 2 * psi / 2);
  EXPECT_EQ(predicted.tier_traffic.to_device_bytes, 2 * psi / 2);
  // Master and two moments.
  EXPECT_GE(predicted.host_state_bytes, 12 * psi / 2);
  config.zero.offload_optimizer.tier = Tier::kDevice;
  EXPECT_LE(predicted.state_bytes + 12 * psi / 2, Predicted(model, config, 2).state_bytes);
}

TEST(MovementTest, StateOnDiskIsReadAndWrittenOnceAStep) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(1, 1, 1, true);
  OptimizerOn(config, Tier::kNvme);
  config.zero.sub_group_size = 1 << 20;
  int64_t bytes = 0;
  for (const auto& layer : model.layers) {
    const int64_t elems = LayoutOf(*layer, 1).num_elems;
    bytes += (12 * elems + 4095) / 4096 * 4096;
  }
  const Prediction predicted = Predicted(model, config, 1);
  EXPECT_EQ(predicted.disk_traffic.read_bytes, bytes);
  EXPECT_EQ(predicted.disk_traffic.written_bytes, bytes);
  EXPECT_EQ(predicted.host_state_bytes, 0);
}

// Whole units rest on the device or do not: the share is met to one unit.
TEST(MovementTest, TheRatioIsTheShareOfTheOptimizerThatLeavesTheDevice) {
  const Model model = TinyGpt2();
  int64_t largest = 0;
  for (const auto& layer : model.layers)
    largest = std::max(largest, LayoutOf(*layer, 2).num_elems / 2);
  const auto host_bytes = [&](double ratio) {
    DsConfig config = ConfigOf(3, 2, 1, false);
    OptimizerOn(config, Tier::kHost);
    config.zero.offload_optimizer.ratio = ratio;
    return Predicted(model, config, 2).host_state_bytes;
  };
  const int64_t all = host_bytes(1);
  EXPECT_EQ(host_bytes(0), 0);
  for (const double ratio : {0.25, 0.5, 0.75}) {
    EXPECT_NEAR(static_cast<double>(host_bytes(ratio)), ratio * static_cast<double>(all),
                static_cast<double>(12 * largest))
        << ratio;
  }
}

TEST(MovementTest, AModelLargerThanDeviceAndHostMemoryTrainsFromDisk) {
  const Model model = Gpt2(12, 64, 61);
  DsConfig config = ConfigOf(3, 1, 1, true);
  const Prediction plain = Predicted(model, config, 1);
  OptimizerOn(config, Tier::kNvme);
  ParamsOn(config, Tier::kNvme);
  config.zero.offload_param.max_in_cpu = 0;
  config.zero.reduce_bucket_size = config.zero.allgather_bucket_size = 10'000;
  config.activation.checkpoint_interval = 1;
  const Prediction on_disk = Predicted(model, config, 1);
  // Gradients rest in host memory: 2 of the 16 bytes per parameter.
  ASSERT_LT(on_disk.peak_bytes + on_disk.host_peak_bytes, plain.state_bytes / 2);

  const auto data = Synthetic();
  RunRanks(1, [&](ProcessGroup& group) {
    TestDevice device(group, on_disk.peak_bytes, on_disk.host_peak_bytes);
    const Resources resources = device.For(model, data.get(), kSeqLen);
    EXPECT_THROW(Engine(resources, ConfigOf(3, 1, 1, true), 7), OutOfMemory);
    Engine engine(resources, config, 7);
    const double first = engine.TrainBatch().loss;
    double last = first;
    for (int step = 0; step < 30; ++step)
      last = engine.TrainBatch().loss;
    EXPECT_LT(last, first - 0.1);
  });
}

TEST(MovementTest, PipelinedReadsHoldMoreSubGroupsInHostMemory) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(1, 1, 1, false);
  OptimizerOn(config, Tier::kNvme);
  const int64_t one = Predicted(model, config, 1).host_peak_bytes;
  config.zero.offload_optimizer.pipeline_read = true;
  const int64_t two = Predicted(model, config, 1).host_peak_bytes;
  config.zero.offload_optimizer.buffer_count = 16;
  EXPECT_LT(one, two);
  EXPECT_LT(two, Predicted(model, config, 1).host_peak_bytes);
}

TEST(MovementTest, CheckpointingKeepsFewerActivationsForMoreComputing) {
  const Model model = Gpt2(12, 24, 61);
  const auto activation_bytes = [&](ActivationConfig activation) {
    DsConfig config = ConfigOf(0, 1, 1, false);
    config.activation = activation;
    return Predicted(model, config, 1).activation_bytes_per_sample;
  };
  const int64_t all = activation_bytes({});
  const int64_t inputs = activation_bytes({.checkpoint_interval = 1});
  const int64_t on_host = activation_bytes({.checkpoint_interval = 1, .checkpoints_on_host = true});
  EXPECT_LT(inputs, all / 2);
  EXPECT_LT(on_host, inputs);
  // Recomputed blocks count: all blocks at once are nearly as much as to keep them.
  EXPECT_GT(activation_bytes({.checkpoint_interval = 12}), all * 3 / 4);
  const int64_t thirds = activation_bytes({.checkpoint_interval = 4});
  EXPECT_LT(inputs, thirds);
  EXPECT_LT(thirds, all / 2);
}

TEST(MovementTest, ReuseHoldsMoreParametersAndSendsLess) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(3, 2, 1, false);
  const Prediction released = Predicted(model, config, 2);
  config.zero.stage3_max_reuse_distance = 1'000'000;
  const Prediction kept = Predicted(model, config, 2);
  EXPECT_GT(kept.peak_bytes, released.peak_bytes);
  EXPECT_LT(kept.step_traffic.sent_bytes, released.step_traffic.sent_bytes);
  config.zero.stage3_max_live_parameters = 1;  // Reuse beyond the next layer is given up.
  EXPECT_EQ(Predicted(model, config, 2).step_traffic, released.step_traffic);
}

TEST(MovementTest, BroadcastsSendTheSameInMoreCalls) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(1, 4, 1, false);
  const Prediction gathered = Predicted(model, config, 4);
  config.zero.allgather_partitions = false;
  const Prediction broadcast = Predicted(model, config, 4);
  EXPECT_EQ(broadcast.step_traffic.num_collectives, gathered.step_traffic.num_collectives + 3);
}

TEST(MovementTest, ModelPersistenceThresholdBoundsWhatRestsReplicated) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(3, 2, 1, false);
  config.zero.stage3_param_persistence_threshold = 1'000'000;
  const auto num_sharded = [&] {
    const Plan plan = PlanFor(model, config, 2);
    return std::ranges::count_if(
        plan.units, [](const UnitPlan& unit) { return unit.param.placement == Placement::kShard; });
  };
  EXPECT_EQ(num_sharded(), 0);
  config.zero.stage3_model_persistence_threshold = 0;
  EXPECT_EQ(num_sharded(), 4);
}

// A wider type on the way, or to accumulate in, costs its bytes and loses less.
TEST(MovementTest, GradientsTravelAndAccumulateInTheTypesAskedFor) {
  const Model model = TinyGpt2();
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    DsConfig config = ConfigOf(stage, 2, 3, true);
    const auto bf16 = Train(model, config, 2, 1);
    config.communication_type = DType::kF32;
    const auto wide = Train(model, config, 2, 1);
    ExpectPredicted(model, config, 2);
    EXPECT_GT(wide[0].step_traffic.sent_bytes, bf16[0].step_traffic.sent_bytes);
    config.grad_accum_type = DType::kF32;
    const auto exact = Train(model, config, 2, 1);
    ExpectPredicted(model, config, 2);
    EXPECT_GT(exact[0].peak_bytes, wide[0].peak_bytes);
    DsConfig f32 = ConfigOf(stage, 2, 3, false);
    const double norm = Train(model, f32, 2, 1)[0].steps[0].grad_norm;
    EXPECT_NEAR(exact[0].steps[0].grad_norm, norm, 0.02 * norm);
    EXPECT_NE(exact[0].steps[0].grad_norm, bf16[0].steps[0].grad_norm);
  }
}

TEST(MovementTest, PredivisionByAPowerOfTwoChangesNothingAndSumsAreNotAveraged) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(1, 2, 1, false);
  const auto plain = Train(model, config, 2, 2);
  config.gradient_predivide_factor = 8;
  EXPECT_EQ(WholeParams(model, Train(model, config, 2, 2), config),
            WholeParams(model, plain, config));
  config.average_gradients = false;
  const auto summed = Train(model, config, 2, 1);
  EXPECT_NEAR(summed[0].steps[0].grad_norm, 2 * plain[0].steps[0].grad_norm, 1e-6);
}

// Where nothing is sent, no type to send in rounds.
TEST(MovementTest, OneRanksGradientsMoveBetweenTiersAsTheyAre) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(1, 1, 3, true);
  config.grad_accum_type = DType::kF32;
  config.communication_type = DType::kF16;
  config.gradient_predivide_factor = 3;
  const auto expected = WholeParams(model, Train(model, config, 1, 2));
  OptimizerOn(config, Tier::kHost);
  EXPECT_EQ(WholeParams(model, Train(model, config, 1, 2)), expected);
}

// Every unit is split over all ranks, so that no rank has more of the copying than another: what
// round_robin_gradients is for.
TEST(MovementTest, RanksCopyEqualShares) {
  const Model model = TinyGpt2();
  DsConfig config = ConfigOf(2, 4, 1, true);
  OptimizerOn(config, Tier::kHost);
  const TierTraffic first = Predicted(model, config, 4).tier_traffic;
  EXPECT_GT(first.to_host_bytes, 0);
  for (const int rank : {1, 2, 3})
    EXPECT_EQ(Predicted(model, config, 4, rank).tier_traffic, first) << rank;
}

// The sum over four ranks overflows in f16 where a quarter of it does not.
TEST(MovementTest, PredividedGradientsFitHalfPrecision) {
  const Model model = TinyGpt2();
  const auto num_skipped = [&](double predivide_factor) {
    DsConfig config = ConfigOf(1, 4, 1, false);
    SetPrecision(config, DType::kF16);
    config.gradient_predivide_factor = predivide_factor;
    return Train(model, config, 4, NumStepsFor(config))[0].skipped;
  };
  EXPECT_LT(num_skipped(4), num_skipped(1));
}

TEST(MovementTest, AFolderOfSwapFilesIsNamedWithItsKey) {
  const auto data = Synthetic();
  const Model model = TinyGpt2();
  const auto error_of = [&](const DsConfig& config) {
    std::string message;
    RunRanks(1, [&](ProcessGroup& group) {
      TestDevice device(group);
      try {
        Engine engine(device.For(model, data.get(), kSeqLen), config, 7);
      } catch (const Error& error) {
        message = error.what();
      }
    });
    return message;
  };
  DsConfig optimizer = ConfigOf(3, 1, 1, true), params = optimizer;
  OptimizerOn(optimizer, Tier::kNvme);
  optimizer.zero.offload_optimizer.nvme_path = "/none";
  EXPECT_THAT(error_of(optimizer),
              testing::StartsWith("/zero_optimization/offload_optimizer/nvme_path: scratch file in "
                                  "/none: "));
  ParamsOn(params, Tier::kNvme);
  params.zero.offload_param.nvme_path = "/none";
  EXPECT_THAT(error_of(params), testing::StartsWith("/zero_optimization/offload_param/nvme_path: "
                                                    "scratch file in /none: "));
  Arena host("host memory", Arena::Kind::kReal, 0);
  const std::string folder = std::filesystem::temp_directory_path();
  EXPECT_THROW(
      SwapFile({.folder = folder, .aio = {}, .offloaded = "param"}, {int64_t{1} << 50}, host),
      OutOfMemory);
  const Error error = ErrorOf([&] {
    SwapFile({.folder = folder, .aio = {}, .offloaded = "param"}, {int64_t{1} << 50}, host);
  });
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.what(),
              testing::MatchesRegex("/zero_optimization/offload_param/nvme_path: scratch file in " +
                                    folder +
                                    ": 1.0 PiB wanted, .* free: "
                                    "No space left on device; free space there, or name a folder "
                                    "on another disk"));
}

}  // namespace
}  // namespace dsat::engine
