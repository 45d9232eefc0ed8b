// The models of auto: derivatives, what evidence about memory does, what a fit recovers.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "methods/auto_failures.h"
#include "methods/auto_memory.h"
#include "methods/auto_regression.h"
#include "methods/auto_space.h"
#include "methods/auto_time_model.h"
#include "tests/methods/small_machine.h"

namespace dsat {
namespace {

// Four ranks; a sample takes 1 GB of 40 GB, and states 10 GB at stage 0.
SearchSpace FourRanks(bool exact) {
  SearchSpace space = TestSpace({0, 2, 3}, 30);
  space.exact = exact;
  space.workload = {.num_params = kGb / 2,
                    .trainable_num_params = kGb / 2,
                    .bytes_per_param = 2,
                    .data_parallel = 4,
                    .device_memory_bytes = 40 * kGb};
  for (StageSpace& stage : space.stages) {
    stage.knobs = {{"/zero_optimization/reduce_bucket_size", {10'000'000, 500'000'000}},
                   {"/zero_optimization/overlap_comm", {true, false}}};
    stage.submitted = {{"/zero_optimization/reduce_bucket_size", 500'000'000}};
    for (const int64_t size : {1, 2, 4, 8, 16, 32, 64})
      stage.forecasts.push_back({.micro_batch_size = size, .peak_bytes = 10 * kGb + size * kGb});
  }
  return space;
}

AutoConfig ConfigOf(const AutoSpace& space, int64_t place, int64_t knobs, int64_t size) {
  AutoConfig config = space.ConfigOf(AutoCandidate{place, knobs, 0});
  config.micro_batch = size;
  return config;
}

TEST(AutoSpaceTest, SizesAreLegalAndDense) {
  SearchSpace space = TestSpace({1}, 100);
  space.divisible_by = 3;
  const AutoSpace multiples(space, {});
  int64_t last = 0;
  for (const int64_t size : multiples.sizes(0)) {
    EXPECT_EQ(size % 3, 0);
    EXPECT_LE(size, std::max(last + 3, last * 107 / 100));
    last = size;
  }
  EXPECT_GE(last, 400);
  space.samples_per_step = 24;
  EXPECT_EQ(AutoSpace(space, {}).sizes(0), (std::vector<int64_t>{3, 6, 12, 24}));
  EXPECT_EQ(AutoSpace(space, {}).AccumulationOf(6), 4);
  space.divisible_by = 5;
  EXPECT_TRUE(AutoSpace(space, {}).sizes(0).empty());
}

TEST(AutoSpaceTest, AVastSpaceKeepsTheSubmittedCombinationAndItsNeighbors) {
  SearchSpace space = TestSpace({1}, 100);
  StageSpace& stage = space.stages[0];
  stage.knobs.clear();
  for (int i = 0; i < 9; ++i) {
    stage.knobs.push_back({"/k" + std::to_string(i), {0, 1, 2, 3, 4}});
    stage.submitted["/k" + std::to_string(i)] = 3;
  }
  const AutoSpace listed(space, {});
  EXPECT_LE(listed.num_candidates(), AutoSpace::kMostCandidates);
  EXPECT_GT(listed.num_candidates(), AutoSpace::kMostCandidates / 2);
  EXPECT_GE(listed.num_configs(), 5. * 5 * 5 * 5 * 5 * 5 * 5 * 5 * 5);
  AutoConfig config = listed.ConfigOf(AutoCandidate{});
  config.knobs.others.assign(9, 3);
  EXPECT_TRUE(listed.Find(config));
  config.knobs.others[4] = 0;
  const std::optional<AutoCandidate> neighbor = listed.Find(config);
  ASSERT_TRUE(neighbor);
  EXPECT_EQ(listed.AssignmentOf(*neighbor).at("/k4"), 0);
  EXPECT_EQ(listed.ConfigOf(*neighbor), config);
}

TEST(AutoSpaceTest, ATrialsConfigIsReadBack) {
  const AutoSpace space(FourRanks(false), {});
  Trial trial;
  trial.ds_config = {{"zero_optimization", {{"stage", 2}, {"overlap_comm", true}}}};
  const std::optional<AutoConfig> config = space.ConfigOf(trial, {.micro_batch_size = 7});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->place, 1u);
  EXPECT_TRUE(config->knobs.overlap);
  EXPECT_EQ(config->knobs.reduce_bucket, 5e8);
  const std::optional<AutoCandidate> candidate = space.Find(*config);
  ASSERT_TRUE(candidate);
  EXPECT_EQ(space.ConfigOf(*candidate), *config);
  trial.ds_config["zero_optimization"]["stage"] = 1;
  EXPECT_FALSE(space.ConfigOf(trial, {}));
}

// A knob of a wide space without predicted effects.
SearchSpace WithWideKnobs(SearchSpace space, size_t num_values) {
  for (StageSpace& stage : space.stages) {
    for (const char* pointer : {"/one", "/two"}) {
      Knob knob{.pointer = pointer, .values = {}, .effects = std::vector<KnobEffect>(num_values)};
      for (size_t i = 0; i < num_values; ++i)
        knob.values.push_back(i);
      stage.knobs.push_back(knob);
      stage.submitted[pointer] = 1;
    }
  }
  return space;
}

TEST(AutoSpaceTest, AVastSpaceKeepsAllCombinationsOfTheKnobsThatMatterForSure) {
  const AutoSpace space(WithWideKnobs(FourRanks(false), 100), {});
  for (const double bucket : {1e7, 5e8}) {
    for (const bool overlap : {false, true}) {
      AutoConfig config = ConfigOf(space, 0, 0, 1);
      config.knobs.reduce_bucket = bucket;
      config.knobs.overlap = overlap;
      config.knobs.wide = {1, 1};
      EXPECT_TRUE(space.Find(config)) << bucket << overlap;
    }
  }
}

TEST(AutoSpaceTest, TheGatheringBucketCountsAsAWideKnobAtStage3) {
  SearchSpace space = FourRanks(false);
  for (StageSpace& stage : space.stages)
    stage.knobs.push_back({"/zero_optimization/allgather_bucket_size", {10'000'000, 500'000'000}});
  const AutoSpace listed(space, {});
  const AutoConfig at2 = ConfigOf(listed, 1, 0, 1), other2 = ConfigOf(listed, 1, 1, 1);
  const AutoConfig at3 = ConfigOf(listed, 2, 0, 1), other3 = ConfigOf(listed, 2, 1, 1);
  EXPECT_FALSE(at2.IsLike(other2));
  EXPECT_TRUE(at3.IsLike(other3));
  EXPECT_NE(at3, other3);
}

TEST(AutoFailuresTest, TheSimplestCauseThatAgreesWithWhatHasRunIsBlamed) {
  const AutoSpace space(FourRanks(false), {});
  // Places 0 and 1 with overlap (0) and without (1).
  const auto config = [&](int64_t place, int64_t knobs, int64_t size) {
    return ConfigOf(space, place, knobs, size);
  };
  AutoFailures failures;
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 0, 8)), 1);
  failures.Failed(config(0, 0, 8));
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 0, 8)), 1);  // Everything may be the cause.
  failures.Ran(config(2, 1, 8));
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 1, 2)), 0.5);  // The place may be the cause.
  EXPECT_EQ(failures.ProbabilityRuns(config(1, 0, 2)), 0.5);  // The overlap may be the cause.
  failures.Ran(config(1, 0, 8));
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 1, 2)), 0.5);
  EXPECT_EQ(failures.ProbabilityRuns(config(1, 0, 2)), 1);
  failures.Failed(config(0, 0, 4));
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 1, 2)), 0.25);
  // Neither is alone: the overlap at this place.
  failures.Ran(config(0, 1, 8));
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 1, 2)), 1);
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 0, 2)), 0.25);
  // A configuration that has run at a smaller size fails by its size.
  failures.Ran(config(0, 0, 2));
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 0, 2)), 1);
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 1, 4)), 1);  // Size 8 has run.
  EXPECT_EQ(failures.ProbabilityRuns(config(0, 1, 9)), 0.25);
  EXPECT_EQ(failures.ProbabilityRuns(config(1, 0, 9)), 1);
  // A configuration that has run and fails later fails by chance.
  failures.Ran(config(2, 1, 8));
  failures.Failed(config(2, 1, 2));
  EXPECT_EQ(failures.ProbabilityRuns(config(2, 1, 9)), 1);
}

TEST(AutoMemoryTest, LargerSizesFitLessProbablyAndPeaksSharpenTheBelief) {
  const AutoSpace space(FourRanks(false), {});
  AutoMemory memory(space.space());
  double last = 1;
  for (int64_t size = 1; size <= 60; ++size) {
    const double fits = memory.ProbabilityFits(ConfigOf(space, 0, 0, size));
    EXPECT_LE(fits, last);
    last = fits;
  }
  const AutoConfig large = ConfigOf(space, 0, 0, 27), small = ConfigOf(space, 0, 0, 4);
  const double before = memory.ProbabilityFits(large);
  EXPECT_LT(before, 0.9);
  EXPECT_GT(before, 0.02);
  memory.Fitted(small, 13e9);  // Less than forecast.
  EXPECT_GT(memory.ProbabilityFits(large), before);
  memory.Fitted(ConfigOf(space, 0, 0, 16), 25e9);
  EXPECT_GT(memory.ProbabilityFits(large), 0.7);  // Less than all of the device may be free.
  EXPECT_GT(memory.ProbabilityFits(ConfigOf(space, 0, 0, 22)), 0.95);
  EXPECT_NEAR(memory.Share(large), 36. / 40, 0.03);
}

TEST(AutoMemoryTest, WhatDidNotFitRulesOutAllThatNeedsMore) {
  const AutoSpace space(FourRanks(false), {});
  AutoMemory memory(space.space());
  // The last knob, overlap_comm, changes first.
  constexpr int64_t kSmallBucketOverlap = 0, kSmallBucket = 1, kLargeBucketOverlap = 2;
  const AutoConfig near = ConfigOf(space, 1, kSmallBucketOverlap, 19);
  const double before = memory.ProbabilityFits(near);
  memory.DidNotFit(ConfigOf(space, 1, kSmallBucketOverlap, 20), "");
  EXPECT_LT(memory.ProbabilityFits(near), before);
  EXPECT_FALSE(memory.IsRuledOut(near));
  EXPECT_TRUE(memory.IsRuledOut(ConfigOf(space, 1, kSmallBucketOverlap, 20)));
  EXPECT_TRUE(memory.IsRuledOut(ConfigOf(space, 1, kLargeBucketOverlap, 24)));
  EXPECT_FALSE(memory.IsRuledOut(ConfigOf(space, 1, kSmallBucket, 24)));
  EXPECT_FALSE(memory.IsRuledOut(ConfigOf(space, 2, kSmallBucketOverlap, 24)));
}

TEST(AutoMemoryTest, TheProbabilitiesOfAllSizesAreThoseOfEachUpToTheFirstCertainMisfit) {
  const AutoSpace space(FourRanks(false), {});
  AutoMemory memory(space.space());
  memory.Fitted(ConfigOf(space, 0, 0, 22), 0);
  memory.DidNotFit(ConfigOf(space, 0, 0, 40), "out of memory");
  const std::vector<int64_t> sizes = {1, 20, 28, 32, 38, 60, 200, 400};
  const std::vector<double> fits = memory.ProbabilitiesFit(ConfigOf(space, 0, 0, 1), sizes);
  ASSERT_GT(fits.size(), 4U);
  ASSERT_LT(fits.size(), sizes.size());
  int num_uncertain = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const double of_one = memory.ProbabilityFits(ConfigOf(space, 0, 0, sizes[i]));
    const bool is_certain = of_one < 1e-3 || of_one > 1 - 1e-3;
    num_uncertain += is_certain ? 0 : 1;
    EXPECT_NEAR(i < fits.size() ? fits[i] : 0, of_one, is_certain ? 1e-3 : 1e-12) << sizes[i];
  }
  EXPECT_GT(num_uncertain, 1);
}

TEST(AutoMemoryTest, ExactForecastsAreSharp) {
  const AutoSpace space(FourRanks(true), {});
  const AutoMemory memory(space.space());
  constexpr int64_t kSubmitted = 3;
  EXPECT_GT(memory.ProbabilityFits(ConfigOf(space, 0, kSubmitted, 29)), 0.9);
  EXPECT_LT(memory.ProbabilityFits(ConfigOf(space, 0, kSubmitted, 31)), 0.1);
}

TEST(AutoMemoryTest, ADryRunIsSurerThanFormulas) {
  SearchSpace space = FourRanks(false);
  constexpr int64_t kSubmitted = 3;
  const auto fits = [&](int64_t size) {
    const AutoSpace made(space, {});
    return AutoMemory(made.space()).ProbabilityFits(ConfigOf(made, 0, kSubmitted, size));
  };
  const double small = fits(21), large = fits(33);
  space.tracked = true;
  EXPECT_LT(small, 0.9);
  EXPECT_GT(fits(21), 0.95);
  EXPECT_GT(large, 0.01);
  EXPECT_LT(fits(33), 0.01);
}

TEST(AutoMemoryTest, BucketsThatDeepSpeedAllocatesNeedMemoryOnOneRankAndBeyondTheParameters) {
  SearchSpace space = FourRanks(false);
  space.workload.data_parallel = 1;
  for (StageSpace& stage : space.stages)
    stage.knobs[0].values = {kGb, 2 * kGb};
  constexpr int64_t kSmallBucketOverlap = 0, kLargeBucketOverlap = 2, kLargeBucket = 3;
  const auto more = [&](int64_t place, int64_t knobs) {
    const AutoSpace made(space, {});
    const AutoMemory memory(made.space());
    return memory.Share(ConfigOf(made, place, knobs, 4)) -
           memory.Share(ConfigOf(made, place, kSmallBucketOverlap, 4));
  };
  EXPECT_NEAR(more(1, kLargeBucketOverlap), 0, 1e-9);
  space.workload.whole_buckets = true;
  EXPECT_NEAR(more(0, kLargeBucketOverlap), 0, 1e-9) << "stage 0";
  EXPECT_NEAR(more(1, kLargeBucketOverlap), 4. / 40, 1e-9) << "stage 2";
  EXPECT_NEAR(more(1, kLargeBucket), 0, 1e-9) << "one of 4 GB instead of two of 2 GB";
  EXPECT_NEAR(more(2, kLargeBucketOverlap), 2. / 40, 1e-9) << "stage 3 has one";
  space.workload.on_cpu = true;
  EXPECT_NEAR(more(1, kLargeBucketOverlap), 0, 1e-9) << "of both, the parameters' gradients";
}

TEST(AutoTimeModelTest, GradientsAreDerivatives) {
  SearchSpace space = FourRanks(false);
  for (const char* metric : {"throughput", "latency", "forward", "backward"}) {
    const AutoTimeModel model(space, metric);
    const AutoSpace configs(space, {});
    for (int64_t place = 0; place < 3; ++place) {
      for (const int64_t knobs : {0, 1, 2, 3}) {
        for (const auto part : {AutoTimeModel::Part::kObjective, AutoTimeModel::Part::kForward,
                                AutoTimeModel::Part::kBackward, AutoTimeModel::Part::kUpdate}) {
          AutoConfig config = ConfigOf(configs, place, knobs, 11);
          config.accumulation = 3;
          AutoTimeModel::Vector gradient, parameters = model.prior_mean();
          model.Log(config, 0.95, parameters, part, &gradient);
          for (int i = 0; i < AutoTimeModel::kNum; ++i) {
            constexpr double kStep = 1e-5;
            AutoTimeModel::Vector up = parameters, down = parameters;
            up[i] += kStep;
            down[i] -= kStep;
            const double slope = (model.Log(config, 0.95, up, part, nullptr) -
                                  model.Log(config, 0.95, down, part, nullptr)) /
                                 (2 * kStep);
            // The width of the smoothed maximum is taken as constant.
            EXPECT_NEAR(gradient[i], slope, 0.02)
                << metric << ", stage " << config.stage << ", knobs " << knobs << ", part "
                << static_cast<int>(part) << ", parameter " << i;
          }
        }
      }
    }
  }
}

// Measurements of 12 combinations of wide knobs, of which one value of "/one" takes so much longer.
AutoRegression FitWideKnobs(const AutoSpace& space, double log_effect) {
  AutoRegression regression(AutoTimeModel(space.space(), "throughput"));
  std::vector<AutoObservation> observations;
  for (int i = 0; i < 12; ++i) {
    AutoConfig config = ConfigOf(space, 0, 0, 16);
    config.knobs.wide = {i % 4, i % 3};
    const double noise = i % 2 == 0 ? 0.005 : -0.005;
    observations.push_back(Observe(config, (i % 4 == 2 ? log_effect : 0) + noise, i, 1e-5));
  }
  regression.Fit(observations);
  return regression;
}

TEST(AutoRegressionTest, AFewMeasurementsShowWhetherKnobsOfAWideSpaceMatter) {
  const AutoSpace space(WithWideKnobs(FourRanks(false), 4), {});
  AutoConfig slow = ConfigOf(space, 0, 0, 16), fast = slow, unseen = slow;
  slow.knobs.wide = {2, 0};
  fast.knobs.wide = {1, 0};
  unseen.knobs.wide = {3, 3};
  const auto sd_of_difference = [&](const AutoRegression& regression) {
    const AutoRegression::View view = regression.Look({{fast, 0}, {unseen, 0}}, {});
    return std::sqrt(view.variance[0] + view.variance[1] - 2 * regression.Covariance(view, 0, 1));
  };
  const AutoRegression idle = FitWideKnobs(space, 0);
  EXPECT_NEAR(idle.LogOf({slow, 0}), idle.LogOf({fast, 0}), 0.004);
  EXPECT_LT(sd_of_difference(idle), 0.004);
  const AutoRegression matters = FitWideKnobs(space, 0.1);
  EXPECT_NEAR(matters.LogOf({slow, 0}) - matters.LogOf({fast, 0}), 0.1, 0.03);
  EXPECT_GT(sd_of_difference(matters), 0.01);
}

TEST(AutoRegressionTest, EffectsOfKnobsWithoutAPredictionAddUp) {
  const AutoSpace space(FourRanks(false), {});
  const auto point = [&](const std::vector<int>& values) {
    AutoPoint made{ConfigOf(space, 0, 0, 16), 0};
    made.config.knobs.others = values;
    return made;
  };
  AutoRegression regression(AutoTimeModel(space.space(), "throughput"));
  std::vector<AutoObservation> observations;
  for (const auto& [values, log_value] : std::vector<std::pair<std::vector<int>, double>>{
           {{0, 0}, 0}, {{1, 0}, -0.6}, {{0, 1}, -0.4}, {{2, 0}, 0.2}}) {
    observations.push_back(
        Observe(point(values).config, log_value, 1 + std::ssize(observations), 1e-5));
  }
  regression.Fit(observations);
  const AutoRegression::View view = regression.Look({point({1, 1}), point({0, 0})}, {});
  EXPECT_NEAR(view.mean[0] - view.mean[1], -1, 0.2);
  EXPECT_NEAR(regression.LogOf(point({1, 1})) - regression.LogOf(point({0, 0})), -1, 0.3);
}

TEST(AutoRegressionTest, AFitFollowsTheMeasurementsAndPendingOnesReduceTheDoubt) {
  const SearchSpace space = FourRanks(false);
  const AutoSpace configs(space, {});
  AutoRegression regression{AutoTimeModel(space, "throughput")};
  const auto law = [](const AutoConfig& c) {
    return std::log(0.002 * (1 + 3.0 / c.micro_batch) * (1 + 0.1 * c.stage));
  };
  std::vector<AutoObservation> observations;
  for (const int64_t size : {1, 2, 4, 8, 16, 24}) {
    for (const int64_t place : {0, 1, 2}) {
      const AutoConfig config = ConfigOf(configs, place, 0, size);
      observations.push_back(Observe(config, law(config), 1 + std::ssize(observations)));
    }
  }
  observations[4].log_value += 0.25;  // An outlier.
  regression.Fit(observations);
  const std::vector<AutoPoint> points = {{ConfigOf(configs, 1, 0, 12)},
                                         {ConfigOf(configs, 1, 0, 30)}};
  const AutoRegression::View view = regression.Look(points, {});
  EXPECT_NEAR(view.mean[0], law(points[0].config), 0.02);
  EXPECT_NEAR(view.mean[1], law(points[1].config), 0.03);
  const AutoRegression::View later = regression.Look(points, {points[1]});
  EXPECT_EQ(later.mean, view.mean);
  EXPECT_LT(later.variance[1], view.variance[1]);
  EXPECT_NEAR(regression.Covariance(view, 0, 1), regression.Covariance(view, 1, 0), 1e-12);
}

// Three launches of one configuration, the last one `last` slower than the others, among others.
AutoRegression FitRepeats(const AutoSpace& space, double last, double last_variance = 1e-4) {
  AutoRegression regression{AutoTimeModel(space.space(), "throughput")};
  std::vector<AutoObservation> observations;
  const auto add = [&](int64_t size, double slower, double variance) {
    const double log_value = std::log(0.002 * (1 + 3.0 / static_cast<double>(size))) + slower;
    observations.push_back(
        Observe(ConfigOf(space, 0, 0, size), log_value, 1 + std::ssize(observations), variance));
  };
  for (const int64_t size : {4, 8, 12, 20})
    add(size, 0, 1e-4);
  add(16, 0, 1e-4);
  add(16, 0, 1e-4);
  add(16, last, last_variance);
  regression.Fit(observations);
  return regression;
}

TEST(AutoRegressionTest, ALaunchMayBeSlowedDownButNoneIsSpedUp) {
  const SearchSpace space = FourRanks(false);
  const AutoSpace configs(space, {});
  const auto mean = [&](const AutoRegression& regression) {
    return regression.Look({{ConfigOf(configs, 0, 0, 16)}}, {}).mean[0];
  };
  const double usual = mean(FitRepeats(configs, 0));
  EXPECT_NEAR(mean(FitRepeats(configs, 0.25)), usual, 0.01);
  EXPECT_LT(mean(FitRepeats(configs, -0.25)), usual - 0.04);
}

TEST(AutoRegressionTest, ASlowedLaunchIsNotTakenForAnIrregularMachine) {
  const SearchSpace space = FourRanks(false);
  const AutoSpace configs(space, {});
  AutoRegression regression{AutoTimeModel(space, "throughput")};
  const auto law = [](double size) { return std::log(0.002 * (1 + 3 / size)); };
  std::vector<AutoObservation> observations;
  using Row = std::tuple<int64_t, int64_t, int64_t, double>;
  for (const auto& [place, knobs, size, slower] : std::vector<Row>{{1, 0, 1, 0},
                                                                   {2, 0, 16, 0.03},
                                                                   {2, 0, 26, 0},
                                                                   {1, 0, 24, 0.03},
                                                                   {2, 1, 26, 0.04},
                                                                   {2, 2, 27, 0},
                                                                   {2, 2, 28, 0.25}}) {
    observations.push_back(Observe(ConfigOf(configs, place, knobs, size),
                                   law(static_cast<double>(size)) + slower,
                                   1 + std::ssize(observations), 1e-5));
  }
  regression.Fit(observations);
  const AutoRegression::View view = regression.Look({{ConfigOf(configs, 2, 2, 28)}}, {});
  EXPECT_NEAR(view.mean[0], law(28), 0.03);
  EXPECT_LT(std::sqrt(regression.NoiseVariance(ConfigOf(configs, 2, 2, 28))), 0.02);
}

TEST(AutoRegressionTest, AFewEqualStepsDoNotMakeAMeasurementCertain) {
  const SearchSpace space = FourRanks(false);
  const AutoSpace configs(space, {});
  const auto mean = [&](double last_variance) {
    return FitRepeats(configs, 0.03, last_variance)
        .Look({{ConfigOf(configs, 0, 0, 16)}}, {})
        .mean[0];
  };
  EXPECT_NEAR(mean(1e-10), mean(1e-4), 0.003);
}

TEST(AutoRegressionTest, OnlyTheVarianceOfStepsIsExpectedOfTheNextLaunch) {
  const SearchSpace space = FourRanks(false);
  const AutoSpace configs(space, {});
  AutoRegression regression{AutoTimeModel(space, "throughput")};
  AutoObservation profile;
  profile.point.config = ConfigOf(configs, 0, 0, 1);
  profile.variance = 1e-4;
  profile.other_variance = 0.15 * 0.15;
  regression.Fit({profile});
  EXPECT_LT(regression.NoiseVariance(profile.point.config), 1e-3);
}

TEST(AutoRegressionTest, OverlapMaySlowComputingDownMoreThanItHides) {
  const SearchSpace space = FourRanks(false);
  const AutoSpace configs(space, {});
  AutoRegression regression{AutoTimeModel(space, "throughput")};
  std::vector<AutoObservation> observations;
  for (const int64_t size : {4, 8, 16, 24}) {
    for (const bool overlap : {false, true}) {
      AutoConfig config = ConfigOf(configs, 0, 0, size);
      config.knobs.overlap = overlap;
      const double log_value =
          std::log(0.002 * (1 + 3.0 / static_cast<double>(size)) * (overlap ? 1.04 : 1));
      observations.push_back(Observe(config, log_value, 1 + std::ssize(observations)));
    }
  }
  regression.Fit(observations);
  // Also at another stage.
  AutoPoint without = {ConfigOf(configs, 1, 0, 12)}, with = without;
  without.config.knobs.overlap = false;
  with.config.knobs.overlap = true;
  EXPECT_GT(regression.LogOf(with), regression.LogOf(without) + 0.005);
}

}  // namespace
}  // namespace dsat
