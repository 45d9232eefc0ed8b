// 1-bit Adam is Adam until freeze_step; after it ranks exchange one bit per element and still
// learn.
#include <gtest/gtest.h>

#include "tests/engine/runtime/expect_predicted.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

DsConfig OneBitConfig(int64_t freeze_step, int world_size) {
  DsConfig config = TinyConfig(0, world_size, 1);
  config.optimizer.type = "onebitadam";
  config.optimizer.freeze_step = freeze_step;
  config.optimizer.lr = 3e-3;
  return config;
}

TEST(OneBitAdamTest, UntilFreezeStepItIsAdamWithoutBiasCorrection) {
  const Model model = TinyGpt2();
  DsConfig adam = OneBitConfig(1000, 2);
  const auto one_bit = Train(model, adam, 2, 4);
  adam.optimizer.type = "adamw";
  adam.optimizer.bias_correction = false;
  EXPECT_EQ(WholeParams(model, one_bit, adam), WholeParams(model, Train(model, adam, 2, 4), adam));
}

TEST(OneBitAdamTest, AfterFreezeStepRanksSendAThirtySecondOfTheBytes) {
  const Model model = TinyGpt2();
  for (const int world_size : {2, 4}) {
    const auto warm_up = Train(model, OneBitConfig(1000, world_size), world_size, 3);
    const auto frozen = Train(model, OneBitConfig(2, world_size), world_size, 3);
    int64_t bytes = 0;
    for (const auto& layer : model.layers) {
      const int64_t elems = LayoutOf(*layer, world_size).num_elems;
      if (elems == 0) continue;
      // A row per rank, of a scale and signs in whole words; all-to-all and all-gather.
      bytes += 2 * (world_size - 1) * (8 + (elems / world_size / 8 + 7) / 8 * 8);
    }
    EXPECT_EQ(frozen[0].step_traffic.sent_bytes, bytes);
    EXPECT_LT(bytes, warm_up[0].step_traffic.sent_bytes / 25);
  }
}

TEST(OneBitAdamTest, RanksKeepEqualParameters) {
  const Model model = TinyGpt2();
  const auto runs = Train(model, OneBitConfig(2, 4), 4, 6);
  for (const RankRun& run : runs)
    EXPECT_EQ(run.params, runs[0].params);
}

TEST(OneBitAdamTest, TheLossFallsAsItDoesWithoutCompression) {
  const Model model = TinyGpt2();
  const auto uncompressed = Train(model, OneBitConfig(1000, 2), 2, 120);
  const auto compressed = Train(model, OneBitConfig(40, 2), 2, 120);
  const double first = compressed[0].steps[0].loss;
  const double last = compressed[0].steps.back().loss;
  EXPECT_EQ(compressed[0].steps[39].loss, uncompressed[0].steps[39].loss);
  EXPECT_LT(last, compressed[0].steps[39].loss);
  EXPECT_LT(last, first - 0.5 * (first - uncompressed[0].steps.back().loss));
}

// With one rank nothing is compressed: the frozen variance alone is other than Adam.
TEST(OneBitAdamTest, OneRankSendsNothing) {
  const Model model = TinyGpt2();
  const auto run = Train(model, OneBitConfig(40, 1), 1, 60);
  EXPECT_EQ(run[0].step_traffic.sent_bytes, 0);
  EXPECT_LT(run[0].steps.back().loss, run[0].steps[39].loss);
}

TEST(OneBitAdamTest, ALoadedCheckpointForgetsTheCompressionErrors) {
  const Model model = TinyGpt2();
  const auto data = Synthetic();
  const TempFolder folder;
  RunRanks(2, [&](ProcessGroup& group) {
    TestDevice device(group), fresh_device(group);
    const DsConfig config = OneBitConfig(40, 2);
    Engine used(device.For(model, data.get(), kSeqLen), config, 7);
    for (int step = 0; step < 45; ++step)
      used.TrainBatch();
    used.SaveCheckpoint(folder.path());
    for (int step = 0; step < 5; ++step)
      used.TrainBatch();
    used.LoadCheckpoint(folder.path());
    Engine fresh(fresh_device.For(model, data.get(), kSeqLen), config, 7);
    fresh.LoadCheckpoint(folder.path());
    for (int step = 0; step < 10; ++step)
      EXPECT_EQ(used.TrainBatch().loss, fresh.TrainBatch().loss) << step;
  });
}

TEST(OneBitAdamTest, TheWarmUpIsPredicted) {
  ExpectPredicted(TinyGpt2(), OneBitConfig(1000, 2), 2);
}

}  // namespace
}  // namespace dsat::engine
