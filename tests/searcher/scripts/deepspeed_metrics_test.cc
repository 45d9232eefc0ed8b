// Tests the metrics files of each DeepSpeed version, and the step lines in the logs.
#include "searcher/scripts/deepspeed_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "searcher/scripts/device_memory.h"

namespace dsat {
namespace {

// The same run in every format: 4 micro-steps of 2 + 3 + 1 ms, 32 samples a step, 1.2e9 FLOP a
// micro-step. So a step takes 24 ms, throughput is 32 / 0.024 s, and FLOPS 1.2e9 / 6 ms.
constexpr int64_t kAccumulation = 4;
constexpr int64_t kBatch = 32;
constexpr double kFlops = 1.2e9;

struct Version {
  std::string name;
  Json file;
  std::optional<double> logged_ms;
};

std::vector<Version> AllVersions() {
  return {
      {"0.10.3",
       {{"fwd", 2000.0},
        {"bwd", 3000.0},
        {"step", 1000.0},
        {"latency", 24000.0},
        {"rank", 0},
        {"throughput", kBatch * 1e6 / 24000},
        {"FLOPS_per_gpu", kFlops * 4 * 1e6 / 24000}},
       std::nullopt},
      {"0.10.1",  // Latency is a micro-step's: throughput and FLOPS come out 4 times too large.
       {{"fwd", 2000.0},
        {"bwd", 3000.0},
        {"step", 1000.0},
        {"latency", 6000.0},
        {"throughput", kBatch * 1e6 / 6000},
        {"FLOPS_per_gpu", kFlops * 4 * 1e6 / 6000}},
       std::nullopt},
      {"0.8.1",
       {{"forward", 2000.0},
        {"backward", 3000.0},
        {"step", 1000.0},
        {"latency", 6000.0},
        {"throughput", kBatch * 1e6 / 6000},
        {"FLOPS_per_gpu", kFlops * 4 * 1e6 / 6000}},
       std::nullopt},
      {"0.6.2",  // Per microsecond, and throughput a thousandth.
       {{"forward", 2000.0},
        {"backward", 3000.0},
        {"step", 1000.0},
        {"latency", 6000.0},
        {"throughput", kBatch * 1e3 / 6000},
        {"FLOPS_per_gpu", kFlops * 4 / 6000}},
       24.0},
      {"0.5.7",  // Milliseconds of a whole step.
       {{"forward", 8.0},
        {"backward", 12.0},
        {"step", 4.0},
        {"latency", 24.0},
        {"throughput", kBatch * 1e3 / 24 / 1e3 * 1e3},
        {"FLOPS_per_gpu", kFlops * 4 / 24}},
       24.0},
  };
}

TEST(DeepSpeedMetricsTest, EveryVersionGivesTheSameNumbers) {
  for (Version& version : AllVersions()) {
    SCOPED_TRACE(version.name);
    const auto metrics = NormalizeMetrics(version.file, kAccumulation, kBatch, version.logged_ms);
    ASSERT_TRUE(metrics);
    EXPECT_NEAR(metrics->forward_ms, 8, 1e-9);
    EXPECT_NEAR(metrics->backward_ms, 12, 1e-9);
    EXPECT_NEAR(metrics->step_ms, 4, 1e-9);
    EXPECT_NEAR(metrics->latency_ms, 24, 1e-9);
    EXPECT_NEAR(metrics->flops_per_gpu / (kFlops / 6e-3), 1, 1e-9);
    EXPECT_TRUE(UsedBatchSize(*metrics, kBatch)) << metrics->train_batch_size;
  }
}

TEST(DeepSpeedMetricsTest, TheOldMicrosecondsAreAssumedWhereNothingTells) {
  const auto metrics = NormalizeMetrics(AllVersions()[3].file, kAccumulation, kBatch, std::nullopt);
  EXPECT_NEAR(metrics->latency_ms, 24, 1e-9);
}

TEST(DeepSpeedMetricsTest, AnotherBatchSizeIsNoticed) {
  const Json file = AllVersions()[0].file;
  const auto metrics = NormalizeMetrics(file, kAccumulation, 64, std::nullopt);
  ASSERT_TRUE(metrics);
  EXPECT_FALSE(UsedBatchSize(*metrics, 64));
  EXPECT_NEAR(metrics->train_batch_size, 32, 1e-9);
}

TEST(DeepSpeedMetricsTest, UnfinishedAndSenselessFilesAreRefused) {
  const Json good = AllVersions()[0].file;
  ASSERT_TRUE(NormalizeMetrics(good, 4, kBatch, std::nullopt));
  for (const char* key : {"fwd", "bwd", "step", "throughput"}) {
    Json missing = good, text = good, negative = good, infinite = good;
    missing.erase(key);
    text[key] = "fast";
    negative[key] = -1;
    infinite[key] = std::numeric_limits<double>::infinity();
    for (const Json& bad : {missing, text, negative, infinite}) {
      EXPECT_FALSE(NormalizeMetrics(bad, 4, kBatch, std::nullopt)) << bad;
    }
  }
  EXPECT_FALSE(NormalizeMetrics(Json(), 4, kBatch, std::nullopt));
  EXPECT_FALSE(NormalizeMetrics(Json::array(), 4, kBatch, std::nullopt));
  EXPECT_FALSE(NormalizeMetrics(Json(Json::value_t::discarded), 4, kBatch, std::nullopt));
  Json all_zero = good;
  all_zero["fwd"] = all_zero["bwd"] = all_zero["step"] = 0;
  EXPECT_FALSE(NormalizeMetrics(all_zero, 4, kBatch, std::nullopt));
}

TEST(DeepSpeedMetricsTest, UnknownFlopsAreLeftOut) {
  Json file = AllVersions()[0].file;
  for (const Json& flops : {Json(0.0), Json(nullptr)}) {
    file["FLOPS_per_gpu"] = flops;
    const auto metrics = NormalizeMetrics(file, 4, kBatch, std::nullopt);
    ASSERT_TRUE(metrics);
    EXPECT_EQ(MeasurementOf(*metrics, {}, 3, 5, 4, kBatch).count("FLOPS_per_gpu"), 0u);
  }
}

TEST(DeepSpeedMetricsTest, TimesOfZeroAreLeftOut) {
  const HookMetrics file = {0, 0, 24, 24, 0, kBatch};
  const std::vector<StepLine> lines = {{0, 0, 24, 0}, {0, 0, 24, 24'000'000}};
  for (const Measurement& measured :
       {MeasurementOf(file, {}, 3, 5, 4, kBatch), MeasurementOf(file, lines, 0, 2, 6, kBatch)}) {
    EXPECT_EQ(measured.count("forward") + measured.count("backward"), 0u);
    EXPECT_DOUBLE_EQ(measured.at("step").value, 24);
  }
}

TEST(DeepSpeedMetricsTest, AProblemNamesTheKeyAndTheValue) {
  Json metrics = AllVersions()[0].file;
  EXPECT_EQ(ProblemOfMetrics(metrics), "");
  metrics["throughput"] = -2;
  EXPECT_EQ(ProblemOfMetrics(metrics), "throughput is -2; expected a number > 0");
  metrics.erase("bwd");
  EXPECT_EQ(ProblemOfMetrics(metrics), "\"bwd\" is missing");
  Json info = {{"num_params", 10}, {"trainable_num_params", 20}, {"activation_mem_per_gpu", 0}};
  EXPECT_EQ(ProblemOfModelInfo(info),
            "trainable_num_params is 20; expected at most num_params, which is 10");
  info["num_params"] = 1e30;
  EXPECT_EQ(ProblemOfModelInfo(info), "num_params is 1e+30; expected a number from 1 to 1e17");
  EXPECT_FALSE(NormalizeModelInfo(info, 1));
}

TEST(DeepSpeedMetricsTest, ReadsTheStepLinesOfAllVersions) {
  const auto line = ParseStepLine(
      "[Rank 0] time (ms) | fwd: 0.16 | bwd: 4.00 | bwd_inner: 0.27 | bwd_allreduce: 3.73 | step: "
      "0.79");
  ASSERT_TRUE(line);
  EXPECT_DOUBLE_EQ(line->forward_ms, 0.16);
  EXPECT_DOUBLE_EQ(line->backward_ms, 4.0);
  EXPECT_DOUBLE_EQ(line->step_ms, 0.79);
  const auto old_line = ParseStepLine(
      "10%|#\r[2024-01-01 00:00:00] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
      "forward: 1.5 | backward: 2 | backward_inner: 1 | backward_allreduce: 1 | step: 3.25");
  ASSERT_TRUE(old_line);
  EXPECT_DOUBLE_EQ(old_line->backward_ms, 2);
  EXPECT_DOUBLE_EQ(old_line->step_ms, 3.25);
}

TEST(DeepSpeedMetricsTest, OtherLinesAreNoSteps) {
  for (const char* text :
       {"", "fwd: 1 | bwd: 1 | step: 1", "[Rank 0] time (ms) |", "time (ms) | fwd: 1 | bwd: 2",
        "time (ms) | fwd: x | bwd: 2 | step: 3",
        "time (ms) | fwd_microstep: 1.0 | bwd_microstep: 2.0 | step_microstep: 0.5"}) {
    EXPECT_FALSE(ParseStepLine(text)) << text;
  }
}

TEST(DeepSpeedMetricsTest, CountsTheWholeStepLinesOfALog) {
  const std::string step = "time (ms) | fwd: 1 | bwd: 2 | step: 3";
  EXPECT_EQ(CountStepLines(step + "\nother\n" + step + "\n" + step), 2);
  EXPECT_EQ(CountStepLines(std::string(9000, '.') + step + "\n"), 0);
  EXPECT_EQ(CountStepLines(""), 0);
}

// Lines whose k-th step takes `ms[k]` by the clock, and half of it by their own text.
std::vector<StepLine> Lines(const std::vector<int64_t>& ms) {
  std::vector<StepLine> lines;
  int64_t now_ns = 1'000'000'000;
  for (const int64_t step_ms : ms) {
    now_ns += step_ms * 1'000'000;
    lines.push_back({0.1 * static_cast<double>(step_ms), 0.3 * static_cast<double>(step_ms),
                     0.1 * static_cast<double>(step_ms), now_ns});
  }
  return lines;
}

TEST(DeepSpeedMetricsTest, ArrivalTimesGiveTheTrueLatency) {
  const HookMetrics file = {8, 12, 4, 24, 2e11, kBatch};
  // Steps 0 to 6; profiled is 2, the last one 7. Used are 3, 4, 5, 6.
  const Measurement measured =
      MeasurementOf(file, Lines({900, 50, 700, 40, 60, 30, 50}), 2, 7, 4, 32);
  EXPECT_EQ(measured.at("latency").samples, 4);
  EXPECT_DOUBLE_EQ(measured.at("latency").value, 45);
  EXPECT_DOUBLE_EQ(measured.at("latency").spread, (52.5 - 37.5) / 2);
  EXPECT_DOUBLE_EQ(measured.at("throughput").value, (32 / 0.05 + 32 / 0.04) / 2);
  EXPECT_DOUBLE_EQ(measured.at("backward").value, 0.3 * 45);
  // 2e11 FLOP/s for 24 ms are 4.8e9 FLOP, now in 40 and 50 ms.
  EXPECT_NEAR(measured.at("FLOPS_per_gpu").value, (4.8e9 / 0.05 + 4.8e9 / 0.04) / 2, 1);
}

TEST(DeepSpeedMetricsTest, StepsWithASmallerBatchAreLeftOut) {
  const HookMetrics file = {8, 12, 4, 24, 0, kBatch};
  const std::vector<StepLine> lines = Lines({9, 9, 9, 40, 5, 60});
  EXPECT_DOUBLE_EQ(MeasurementOf(file, lines, 2, 6, 1, kBatch, {4}).at("latency").value, 50);
  // The file's own step is the last one.
  EXPECT_DOUBLE_EQ(MeasurementOf(file, lines, 2, 6, 1, kBatch, {4, 5}).at("latency").value, 24);
  EXPECT_DOUBLE_EQ(MeasurementOf(file, lines, 2, 6, 1, kBatch, {4, 5, 6}).at("latency").value, 40);
}

TEST(DeepSpeedMetricsTest, OneLineIsEnoughOnlyWhereTheFileIsBiased) {
  const HookMetrics file = {8, 12, 4, 24, 0, kBatch};
  const std::vector<StepLine> lines = Lines({10, 10, 10, 10, 40});
  EXPECT_DOUBLE_EQ(MeasurementOf(file, lines, 3, 5, 5, kBatch).at("latency").value, 24);
  EXPECT_DOUBLE_EQ(MeasurementOf(file, lines, 3, 5, 6, kBatch).at("latency").value, 40);
  EXPECT_DOUBLE_EQ(MeasurementOf(file, {}, 3, 5, 6, kBatch).at("latency").value, 24);
}

TEST(DeepSpeedMetricsTest, LinesAfterASwallowedExitDoNotCount) {
  const HookMetrics file = {8, 12, 4, 24, 0, kBatch};
  const Measurement measured =
      MeasurementOf(file, Lines({9, 9, 20, 20, 500, 500, 500}), 1, 4, 1, kBatch);
  EXPECT_EQ(measured.at("latency").samples, 2);
  EXPECT_DOUBLE_EQ(measured.at("latency").value, 20);
}

TEST(DeepSpeedMetricsTest, StepsThatTheHookHasCountedAreUsedInsteadOfArrivals) {
  const HookMetrics file = {8, 12, 4, 24, 2e11, kBatch};
  const std::vector<StepLine> lines = Lines({900, 50, 700, 40, 60});
  // The last step has printed nothing.
  const Measurement measured = MeasurementOf(file, lines, 2, 4, 1, kBatch, {}, {3, {44, 66, 55}});
  EXPECT_EQ(measured.at("latency").samples, 3);
  EXPECT_DOUBLE_EQ(measured.at("latency").value, 55);
  EXPECT_DOUBLE_EQ(measured.at("throughput").value, kBatch / 0.055);
  EXPECT_DOUBLE_EQ(measured.at("FLOPS_per_gpu").value, 4.8e9 / 0.055);
  EXPECT_EQ(measured.at("forward").samples, 2);
  EXPECT_DOUBLE_EQ(measured.at("forward").value, 0.1 * 50);
  // Without smaller batches, of which the fifth step has one.
  const CountedSteps counted = {3, {44, 66, 55}};
  EXPECT_DOUBLE_EQ(MeasurementOf(file, lines, 2, 4, 1, kBatch, {4}, counted).at("latency").value,
                   49.5);
  EXPECT_DOUBLE_EQ(MeasurementOf(file, {}, 2, 4, 1, kBatch, {}, {3, {44, 66}}).at("backward").value,
                   12);
}

TEST(DeepSpeedMetricsTest, ThePeakIsTheLargestOfTheLog) {
  EXPECT_EQ(
      MaxMemAllocated("a MaxMemAllocated=1.25GB\nMaxMemAllocated=2.5GB,\nMaxMemAllocated=2GB"),
      2.5 * (1 << 30));
  EXPECT_EQ(MaxMemAllocated("MemAllocated=3GB"), std::nullopt);
  EXPECT_EQ(MaxMemAllocated("MaxMemAllocated=3"), std::nullopt);
  EXPECT_EQ(MaxMemAllocated("MaxMemAllocated="), std::nullopt);
}

TEST(DeepSpeedMetricsTest, ReadsModelInfo) {
  const Json file = {{"num_params", 124439808},
                     {"trainable_num_params", 124439808},
                     {"activation_mem_per_gpu", 64 << 20},
                     {"rank", 0}};
  const auto profile = NormalizeModelInfo(file, 2);
  ASSERT_TRUE(profile);
  EXPECT_EQ(profile->num_params, 124439808);
  EXPECT_EQ(profile->activation_bytes_per_sample, 32 << 20);
  EXPECT_EQ(profile->device_memory_bytes, 0);
  EXPECT_EQ(profile->forward_flops_per_sample, 0);
  Json more = file;
  more["gpu_mem"] = 80'000'000'000;
  more["activation_mem_per_gpu"] = -5;
  EXPECT_EQ(NormalizeModelInfo(more, 1)->device_memory_bytes, 80'000'000'000);
  EXPECT_EQ(NormalizeModelInfo(more, 1)->activation_bytes_per_sample, 1 << 20);
  more["gpu_mem"] = 1e300;
  EXPECT_FALSE(NormalizeModelInfo(more, 1));
  for (const char* key : {"num_params", "trainable_num_params", "activation_mem_per_gpu"}) {
    Json missing = file;
    missing.erase(key);
    EXPECT_FALSE(NormalizeModelInfo(missing, 1)) << key;
  }
  EXPECT_FALSE(NormalizeModelInfo(Json(), 1));
}

TEST(DeviceMemoryTest, TheSmallestDeviceCounts) {
  EXPECT_EQ(SmallestMib("81559\n40960\n"), int64_t{40960} << 20);
  EXPECT_EQ(SmallestMib(""), std::nullopt);
  EXPECT_EQ(SmallestMib("[N/A]\n"), std::nullopt);
  EXPECT_EQ(SmallestMib("81559\nfailed\n"), std::nullopt);
  EXPECT_GT(HostMemoryBytes(), 1 << 26);
}

}  // namespace
}  // namespace dsat
