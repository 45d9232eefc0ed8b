// FLOPS_per_gpu compares the speeds of an experiment's trials, whatever each of them counts.
#include <gtest/gtest.h>

#include "proto/trial.h"
#include "tests/searcher/search/simulated_trials.h"

namespace dsat {
namespace {

Measurement Reported(double throughput, double flops) {
  return {
      {"throughput", {throughput, 2, 7}}, {"FLOPS_per_gpu", {flops, 1, 3}}, {"MFU", {0.5, 0.1, 3}}};
}

PointResult PointOf(double throughput, double flops) {
  return {{4, 1}, Reported(throughput, flops)};
}

// An experiment that is run from outside, with or without a count by its profile.
class SampleFlopsTest : public ::testing::Test {
 protected:
  Experiment Make(int64_t forward_flops_per_sample, bool compat_determined = false) {
    ExperimentSpec spec = SearchSpec("random");
    spec.profile = SampleProfile();
    spec.profile->forward_flops_per_sample = forward_flops_per_sample;
    spec.slots_per_trial = 2;
    spec.options.compat_determined = compat_determined;
    return Experiment::Create(store_, spec);
  }

  // Tells a success and returns what is recorded of it.
  static Measurement Record(Experiment& experiment, const std::vector<PointResult>& points) {
    const TrialId id = experiment.Ask()->id;
    experiment.TellExternal(id, {TrialState::kSucceeded, ""}, points, std::nullopt);
    return experiment.search().trials().at(id).points.back().measurement;
  }

  Store store_ = Store::InMemory();
};

TEST(WithFlopsPerSampleTest, TheMetricFollowsTheThroughput) {
  const Measurement ours = WithFlopsPerSample(Reported(100, 4000), 50);
  EXPECT_EQ(ours.at("FLOPS_per_gpu").value, 5000);
  EXPECT_EQ(ours.at("FLOPS_per_gpu").spread, 100);
  EXPECT_EQ(ours.at("FLOPS_per_gpu").samples, 7);
  EXPECT_DOUBLE_EQ(ours.at("MFU").value, 0.625);
  EXPECT_EQ(ours.at("throughput").value, 100);
  EXPECT_EQ(RankFlopsPerSample(ours), 50);
}

TEST(WithFlopsPerSampleTest, WhatWasNotMeasuredIsNotMadeUp) {
  EXPECT_FALSE(WithFlopsPerSample({{"throughput", {100, 1, 3}}}, 50).contains("FLOPS_per_gpu"));
  EXPECT_EQ(WithFlopsPerSample({{"FLOPS_per_gpu", {100, 1, 3}}}, 50).at("FLOPS_per_gpu").value,
            100);
  EXPECT_FALSE(RankFlopsPerSample(Reported(0, 100)).has_value());
  EXPECT_FALSE(RankFlopsPerSample(Reported(100, 0)).has_value());
}

TEST_F(SampleFlopsTest, TheFirstTrialCountsForAll) {
  Experiment experiment = Make(0);
  EXPECT_EQ(Record(experiment, {PointOf(100, 5000)}).at("FLOPS_per_gpu").value, 5000);
  EXPECT_EQ(Record(experiment, {PointOf(200, 9000)}).at("FLOPS_per_gpu").value, 10'000);
  Experiment resumed = Experiment::Open(store_, experiment.id());
  EXPECT_EQ(Record(resumed, {PointOf(10, 1)}).at("FLOPS_per_gpu").value, 500);
}

TEST_F(SampleFlopsTest, TheFirstPointOfATrialCountsForItsOthers) {
  Experiment experiment = Make(0);
  EXPECT_EQ(Record(experiment, {PointOf(100, 5000), PointOf(200, 9000)}).at("FLOPS_per_gpu").value,
            10'000);
}

TEST_F(SampleFlopsTest, AProfileThatCountsIsBelievedFirst) {
  Experiment experiment = Make(1000);
  // 3 x 1000 FLOPs per sample on 2 ranks.
  EXPECT_EQ(Record(experiment, {PointOf(100, 5000)}).at("FLOPS_per_gpu").value, 150'000);
}

TEST_F(SampleFlopsTest, ThePublishedMethodsTakeWhatEachTrialReports) {
  Experiment experiment = Make(1000, true);
  EXPECT_EQ(Record(experiment, {PointOf(100, 5000)}).at("FLOPS_per_gpu").value, 5000);
  EXPECT_EQ(Record(experiment, {PointOf(200, 9000)}).at("FLOPS_per_gpu").value, 9000);
}

// Launched trials take the same way.
TEST_F(SampleFlopsTest, MeasurementsThatArriveWhileATrialRunsAreTreatedAlike) {
  Experiment experiment = Make(0);
  Record(experiment, {PointOf(100, 5000)});
  const TrialId id = experiment.Ask()->id;
  experiment.StartAttempt(id, "");
  experiment.RecordMeasured(id, 0, PointOf(200, 9000), std::nullopt);
  EXPECT_EQ(experiment.Attempts(id)[0].points[0].measurement.at("FLOPS_per_gpu").value, 10'000);
}

}  // namespace
}  // namespace dsat
