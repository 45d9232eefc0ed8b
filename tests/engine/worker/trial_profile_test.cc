// Tests what the profiling trial measures of memory: the peaks of micro-batches of 1 and of 2
// samples, as they are predicted.
#include <gmock/gmock.h>

#include <algorithm>

#include "engine/model/models.h"
#include "engine/runtime/predict.h"
#include "proto/trial.h"
#include "tests/engine/worker/trial_process.h"

namespace dsat::engine {
namespace {

class TrialProfileTest : public TrialProcessTest {
 protected:
  TrialProfileTest() {
    task_.mode = TrialTask::Mode::kProfile;
    task_.ds_config.erase("gradient_accumulation_steps");
    task_.device_memory_bytes = int64_t{4} << 20;  // Little, so that speeds are measured quickly.
  }

  Prediction Predicted(int64_t micro_batch_size, int rank, int size,
                       DeviceKind kind = DeviceKind::kCpu) const {
    DsConfig config = ParseDsConfig(task_.ds_config, "ds_config", size, nullptr);
    config.batch = {
        .train_batch_size = micro_batch_size * (size / config.pipeline.num_stages),
        .micro_batch_size = micro_batch_size,
        .accumulation_steps = 1,
    };
    const int64_t seq_len = task_.data["seq_len"].get<int64_t>();
    return Predict(MakeModel(task_.model, "/model"), config, seq_len, rank, size, 1, {}, kind);
  }

  // The highest predicted peak of all ranks.
  int64_t PredictedPeak(int64_t micro_batch_size, int size,
                        DeviceKind kind = DeviceKind::kCpu) const {
    int64_t most = 0;
    for (int rank = 0; rank < size; ++rank)
      most = std::max(most, Predicted(micro_batch_size, rank, size, kind).peak_bytes);
    return most;
  }

  ModelProfile Profile(int size) {
    const auto exits = Run(size);
    for (const RankExit& exit : exits)
      EXPECT_EQ(exit.code, kExitOk) << exit.log;
    const Json line = Json::parse(exits[0].out);
    EXPECT_EQ(line["micro_batch_size"], 1);
    ModelProfile profile = ProfileFromJson(line["profile"], "stdout");
    EXPECT_EQ(line["measurement"]["peak_bytes"]["value"], profile.micro_batch_1_peak_bytes);
    return profile;
  }

  void ExpectPredicted(int size, DeviceKind kind = DeviceKind::kCpu) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", size, task_.ds_config.dump()));
    const ModelProfile profile = Profile(size);
    EXPECT_EQ(profile.micro_batch_1_peak_bytes, PredictedPeak(1, size, kind));
    EXPECT_EQ(profile.micro_batch_2_peak_bytes, PredictedPeak(2, size, kind));
    // A GPU gives memory in blocks of 2 MiB.
    EXPECT_GE(profile.micro_batch_2_peak_bytes,
              profile.micro_batch_1_peak_bytes + (kind == DeviceKind::kCpu ? 1 : 0));
  }
};

TEST_F(TrialProfileTest, ThePeaksOfEveryStageAreThePredictedOnes) {
  for (const int size : {1, 2}) {
    for (int stage = 0; stage <= 3; ++stage) {
      task_.ds_config["zero_optimization"]["stage"] = stage;
      ExpectPredicted(size);
    }
  }
}

TEST_F(TrialProfileTest, ThePeaksOfAPipelineAreItsLargestStages) {
  task_.ds_config["zero_optimization"]["stage"] = 1;
  task_.ds_config["pipeline"]["stages"] = 2;
  for (const int size : {2, 4})
    ExpectPredicted(size);
}

TEST_F(TrialProfileTest, ThePeaksOfHalfPrecisionAndOffloadAreThePredictedOnes) {
  task_.ds_config["bf16"]["enabled"] = true;
  ExpectPredicted(2);
  task_.ds_config["zero_optimization"] = {{"stage", 3},
                                          {"offload_optimizer", {{"device", "cpu"}}},
                                          {"offload_param", {{"device", "cpu"}}}};
  ExpectPredicted(2);
}

// A budget that the step of 2 samples would fill to the last byte.
TEST_F(TrialProfileTest, WithoutRoomToSpareForTwoSamplesThereIsOnlyThePeakOfOne) {
  const int64_t two = PredictedPeak(2, 1);
  task_.device_memory_bytes = two;
  EXPECT_EQ(Profile(1).micro_batch_1_peak_bytes, PredictedPeak(1, 1));
  EXPECT_EQ(Profile(1).micro_batch_2_peak_bytes, 0);
  task_.device_memory_bytes = two + two / 7 + 8;
  EXPECT_EQ(Profile(1).micro_batch_2_peak_bytes, two);
}

TEST_F(TrialProfileTest, RanksOfWhichOneHasNoRoomDecideAlike) {
  task_.model["n_layer"] = 1;  // With the embedding; the head alone is the other stage.
  task_.ds_config["zero_optimization"]["stage"] = 0;
  task_.ds_config["pipeline"] = {{"stages", 2}, {"partition", "uniform"}};
  const int64_t first = Predicted(2, 0, 2).peak_bytes, last = Predicted(2, 1, 2).peak_bytes;
  task_.device_memory_bytes = std::max(first, last);
  ASSERT_LT(std::min(first, last), task_.device_memory_bytes / 8 * 7);
  EXPECT_EQ(Profile(2).micro_batch_2_peak_bytes, 0);
}

TEST_F(TrialProfileTest, PassesOfThreeSizesAndTheLinkAreTimed) {
  const ModelProfile profile = Profile(2);
  ASSERT_EQ(profile.timings.size(), 3);
  EXPECT_EQ(profile.timings[0][0], 1);
  EXPECT_EQ(profile.timings[1][0], 2);
  EXPECT_GT(profile.timings[2][0], 2);
  for (const std::vector<double>& timing : profile.timings) {
    ASSERT_EQ(timing.size(), 3);
    EXPECT_GT(std::min(timing[1], timing[2]), 0);
  }
  EXPECT_GT(profile.link_bytes_per_s, 0);
  EXPECT_EQ(Profile(1).link_bytes_per_s, 0);
  // A larger micro-batch than these is not timed if it would not fit.
  task_.device_memory_bytes = PredictedPeak(2, 1) / 7 * 8 + 8;
  EXPECT_LE(Profile(1).timings.size(), 2);
  task_.device_memory_bytes = int64_t{4} << 20;
  task_.ds_config["zero_optimization"]["stage"] = 1;
  task_.ds_config["pipeline"]["stages"] = 2;
  EXPECT_THAT(Profile(2).timings, testing::IsEmpty());  // Passes wait for the other stage.
}

TEST_F(TrialProfileTest, HostMemoryMustHaveRoomForTwoSamplesToo) {
  task_.ds_config["activation_checkpointing"] = {{"cpu_checkpointing", true}};
  const int64_t two = Predicted(2, 0, 1).host_peak_bytes;
  ASSERT_GT(two, Predicted(1, 0, 1).host_peak_bytes);
  task_.host_memory_bytes = two;
  EXPECT_EQ(Profile(1).micro_batch_2_peak_bytes, 0);
  task_.host_memory_bytes = 2 * two;
  EXPECT_EQ(Profile(1).micro_batch_2_peak_bytes, PredictedPeak(2, 1));
}

// The program, where the library that it finds beside it is the emulated GPU's.
TEST_F(TrialProfileTest, ThePeaksOnAGpuAreThePredictedOnes) {
  const std::string library =
      BuildFolder() + "/tests/engine/backend/emulated_cuda/libemulated_dsat_cuda.so";
  if (!std::filesystem::exists(library)) GTEST_SKIP() << "no emulated GPU in this build";
  std::filesystem::copy_file(program_, folder_ / "dsat-trial");
  std::filesystem::create_symlink(library, folder_ / "libdsat-cuda.so");
  program_ = folder_ / "dsat-trial";
  task_.device = "cuda";
  task_.device_memory_bytes = int64_t{56} << 20;  // 40 MiB are workspace of kernels.
  for (const int stage : {0, 3}) {
    task_.ds_config["zero_optimization"]["stage"] = stage;
    ExpectPredicted(2, DeviceKind::kCuda);
  }
}

}  // namespace
}  // namespace dsat::engine
