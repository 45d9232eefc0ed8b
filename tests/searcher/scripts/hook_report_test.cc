// Tests reading what the ranks of a script report.
#include "searcher/scripts/hook_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "searcher/scripts/device_memory.h"
#include "tests/base/error_code.h"

namespace dsat {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

HookReport ReportOf(const Json& file) {
  return ReadHookReport(file.dump()).value();
}

// Steps 3 to 6 of 40, 60, 30 and 50 ms.
Json Measured() {
  return {{"num_steps", 7},
          {"samples", 32},
          {"flops", 4.8e9},
          {"first_counted_step", 3},
          {"step_seconds", {0.04, 0.06, 0.03, 0.05}},
          {"forward_seconds", {0.004, 0.006, 0.003, 0.005}},
          {"backward_seconds", {0.012, 0.018, 0.009, 0.015}}};
}

TEST(HookReportTest, AMeasurementHasMediansOfTheStepsThatCount) {
  const HookReport report = ReportOf(Measured());
  EXPECT_EQ(report.num_steps, 7);
  EXPECT_EQ(report.samples, 32);
  const Measurement measured = MeasurementOf({report}, 32);
  EXPECT_EQ(measured.at("latency").samples, 4);
  EXPECT_DOUBLE_EQ(measured.at("latency").value, 45);
  EXPECT_DOUBLE_EQ(measured.at("latency").spread, (52.5 - 37.5) / 2);
  EXPECT_DOUBLE_EQ(measured.at("throughput").value, (32 / 0.05 + 32 / 0.04) / 2);
  EXPECT_DOUBLE_EQ(measured.at("forward").value, 4.5);
  EXPECT_DOUBLE_EQ(measured.at("backward").value, 13.5);
  EXPECT_EQ(measured.count("step"), 0u) << "it was not measured";
  EXPECT_NEAR(measured.at("FLOPS_per_gpu").value, (4.8e9 / 0.05 + 4.8e9 / 0.04) / 2, 1);
}

TEST(HookReportTest, StepsWithASmallerBatchOnAnyRankAreLeftOut) {
  const HookReport first = ReportOf(Measured());
  HookReport second;
  second.partial_steps = {4};
  EXPECT_DOUBLE_EQ(MeasurementOf({first, second}, 32).at("latency").value, 40);
  second.partial_steps = {3, 4, 5, 6};  // There are no others.
  EXPECT_DOUBLE_EQ(MeasurementOf({first, second}, 32).at("latency").value, 45);
}

TEST(HookReportTest, TheHighestMemoryOfAllRanksIsMeasured) {
  HookReport first = ReportOf(Measured()), second;
  first.peak_bytes = 3;
  second.peak_bytes = 5;
  second.alloc_retries = 0;
  const Measurement measured = MeasurementOf({first, second}, 32);
  EXPECT_DOUBLE_EQ(measured.at("peak_bytes").value, 5);
  EXPECT_DOUBLE_EQ(measured.at("alloc_retries").value, 0);
  EXPECT_EQ(measured.count("host_bytes"), 0u);
}

TEST(HookReportTest, UnfinishedAndSenselessFilesAreRefused) {
  EXPECT_FALSE(ReadHookReport(""));
  EXPECT_FALSE(ReadHookReport("{\"num_steps\": 3"));
  EXPECT_FALSE(ReadHookReport("[1]"));
  EXPECT_EQ(ReportOf(Json::object()).problem, "");
  for (const Json& steps : {Json(1), Json::array(), Json({0.1, 0}), Json({0.1, "x"})}) {
    const HookReport report = ReportOf({{"step_seconds", steps}});
    EXPECT_TRUE(report.steps.empty());
    EXPECT_EQ(report.problem,
              "step_seconds is " + steps.dump() + "; expected a list of numbers > 0");
  }
}

TEST(HookReportTest, PythonsNumbersThatAreNotFiniteAreRead) {
  const auto report =
      ReadHookReport(R"({"engine": "NaN \" NaN", "losses": [1.5, NaN, -Infinity]})");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->engine, "NaN \" NaN");
  EXPECT_TRUE(report->has_ended);
  ASSERT_EQ(report->losses.size(), 3u);
  EXPECT_TRUE(std::isnan(report->losses[1]) && std::isnan(report->losses[2]));
}

TEST(HookReportTest, TheSettingsAreThoseOfADsConfig) {
  const HookReport report = ReportOf({{"ran", {{"zero_stage", 2}, {"data_parallel_size", 4}}},
                                      {"forward_batch_sizes", {1, 8, 4}},
                                      {"partial_steps", {3, "x"}}});
  EXPECT_THAT(report.ran.settings, ElementsAre(std::pair("/zero_optimization/stage", 2.0)));
  EXPECT_EQ(report.ran.data_parallel_size, 4);
  EXPECT_EQ(report.largest_batch, 8);
  EXPECT_THAT(report.partial_steps, ElementsAre(3));
}

TEST(HookReportTest, AProfileIsReadWithTheMemoryOfTheDevice) {
  Json profile = {{"num_params", 124439808},
                  {"trainable_num_params", 124439808},
                  {"activation_bytes_per_sample", 32 << 20}};
  const auto read = [&](int64_t memory) {
    return ProfileOf(ReportOf({{"profile", profile}, {"on_cpu", true}}), memory, "p");
  };
  EXPECT_EQ(read(1 << 30).num_params, 124439808);
  EXPECT_EQ(read(1 << 30).activation_bytes_per_sample, 32 << 20);
  EXPECT_EQ(read(1 << 30).device_memory_bytes, 1 << 30);
  EXPECT_EQ(read(1 << 30).device, "cpu");
  profile["device_memory_bytes"] = 80'000'000'000;
  profile["activation_bytes_per_sample"] = 0;
  EXPECT_EQ(read(0).device_memory_bytes, 80'000'000'000);
  EXPECT_EQ(read(1 << 30).device_memory_bytes, 1 << 30);
  EXPECT_EQ(read(1 << 30).activation_bytes_per_sample, 1 << 20);
  const auto refusal = [&] { return RefusalOf([&] { read(1); }); };
  for (const char* key : {"num_params", "trainable_num_params", "activation_bytes_per_sample"}) {
    const Json good = profile;
    profile.erase(key);
    EXPECT_THAT(refusal(), HasSubstr(std::string("\"") + key + "\" is missing"));
    profile = good;
  }
  profile = 5;
  EXPECT_THAT(refusal(), HasSubstr("p is a number; expected an object"));
}

TEST(DeviceMemoryTest, TheSmallestDeviceCounts) {
  EXPECT_EQ(SmallestMib("81559\n40960\n"), int64_t{40960} << 20);
  EXPECT_EQ(SmallestMib(""), std::nullopt);
  EXPECT_EQ(SmallestMib("[N/A]\n"), std::nullopt);
  EXPECT_EQ(SmallestMib("81559\nfailed\n"), std::nullopt);
  EXPECT_GT(HostMemoryBytes(), 1 << 26);
}

TEST(RanConfigTest, AFlagThatFeedsTheBatchIsNamedWithItsWayOut) {
  ExperimentSpec spec;
  spec.entrypoint = {"python3", "train.py", "--eval_batch_size", "4", "--batch-size=4"};
  HookReport report;
  report.largest_batch = 4;
  EXPECT_EQ(MisfitOfBatches(report, 4, {}, spec), "");
  EXPECT_THAT(MisfitOfBatches(report, 8, {}, spec),
              HasSubstr("write --batch-size $(jq .train_micro_batch_size_per_gpu $DSAT_DS_CONFIG) "
                        "in the entrypoint in place of --batch-size 4"));
  EXPECT_THAT(MisfitOfBatches(report, 2, {{1, 4}}, spec), HasSubstr("--batch-size $(jq"));
  spec.entrypoint.pop_back();
  EXPECT_THAT(MisfitOfBatches(report, 8, {}, spec), HasSubstr("dsat.get_ds_config(config)"));
}

}  // namespace
}  // namespace dsat
