// Sampling: draws follow the softmax, and depend on seed, row and position alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/worker/inference.h"

namespace dsat::engine {
namespace {

const std::vector<float> kLogits = {0.5F, 2.0F, -1.0F, 2.0F, 1.0F};

GenerateTask TaskWith(double temperature, int64_t top_k = 0) {
  GenerateTask task;
  task.temperature = temperature;
  task.top_k = top_k;
  return task;
}

std::map<int32_t, double> Frequencies(const GenerateTask& task, uint64_t seed) {
  constexpr int kDraws = 20000;
  std::map<int32_t, double> frequencies;
  for (int i = 0; i < kDraws; ++i)
    frequencies[SampleToken(kLogits, task, seed, 0, i)] += 1.0 / kDraws;
  return frequencies;
}

TEST(SamplingTest, TemperatureZeroTakesTheFirstOfTheLargest) {
  EXPECT_EQ(SampleToken(kLogits, TaskWith(0), /*seed=*/0, 3, 7), 1);
}

TEST(SamplingTest, DrawsFollowTheSoftmaxOfTheTemperature) {
  for (const double temperature : {0.7, 1.0, 2.0}) {
    auto frequencies = Frequencies(TaskWith(temperature), 5);
    double sum = 0;
    for (const float logit : kLogits)
      sum += std::exp(double{logit} / temperature);
    for (size_t i = 0; i < kLogits.size(); ++i) {
      EXPECT_NEAR(frequencies[static_cast<int32_t>(i)],
                  std::exp(double{kLogits[i]} / temperature) / sum, 0.015);
    }
  }
}

TEST(SamplingTest, TopKLeavesTheOthersOut) {
  auto frequencies = Frequencies(TaskWith(1, 3), 5);
  EXPECT_EQ(frequencies.size(), 3U);
  EXPECT_NEAR(frequencies[1], std::exp(2.0) / (2 * std::exp(2.0) + std::exp(1.0)), 0.015);
  EXPECT_NEAR(frequencies[1], frequencies[3], 0.02);
  EXPECT_EQ(Frequencies(TaskWith(1, 1), 0).begin()->first, 1);
}

TEST(SamplingTest, DrawsDependOnSeedRowAndPosition) {
  const GenerateTask task = TaskWith(1);
  std::vector<int32_t> first, again, other_seed, other_row;
  for (int64_t i = 0; i < 50; ++i) {
    first.push_back(SampleToken(kLogits, task, 1, 0, i));
    again.push_back(SampleToken(kLogits, task, 1, 0, i));
    other_seed.push_back(SampleToken(kLogits, task, 2, 0, i));
    other_row.push_back(SampleToken(kLogits, task, 1, 1, i));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other_seed);
  EXPECT_NE(first, other_row);
}

TEST(SamplingTest, NumbersThatAreNoneAreNotDrawn) {
  const GenerateTask task = TaskWith(1);
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(SampleToken(std::vector<float>{nan, 0.0F, -inf}, task, 0, 0, i), 1);
    EXPECT_EQ(SampleToken(std::vector<float>{0.0F, inf, nan}, task, 0, 0, i), 1);
  }
}

}  // namespace
}  // namespace dsat::engine
