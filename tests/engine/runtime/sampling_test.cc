// Sampling: draws follow the softmax, and depend on seed, row and position alone.
#include "engine/runtime/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace dsat::engine {
namespace {

const std::vector<float> kLogits = {0.5F, 2.0F, -1.0F, 2.0F, 1.0F};

std::map<int32_t, double> Frequencies(const SamplingOptions& options) {
  constexpr int kDraws = 20000;
  std::map<int32_t, double> frequencies;
  for (int i = 0; i < kDraws; ++i)
    frequencies[SampleToken(kLogits, options, 0, i)] += 1.0 / kDraws;
  return frequencies;
}

TEST(SamplingTest, TemperatureZeroTakesTheFirstOfTheLargest) {
  EXPECT_EQ(SampleToken(kLogits, {.temperature = 0}, 3, 7), 1);
}

TEST(SamplingTest, DrawsFollowTheSoftmaxOfTheTemperature) {
  for (const double temperature : {0.7, 1.0, 2.0}) {
    auto frequencies = Frequencies({.temperature = temperature, .seed = 5});
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
  auto frequencies = Frequencies({.top_k = 3, .seed = 5});
  EXPECT_EQ(frequencies.size(), 3U);
  EXPECT_NEAR(frequencies[1], std::exp(2.0) / (2 * std::exp(2.0) + std::exp(1.0)), 0.015);
  EXPECT_NEAR(frequencies[1], frequencies[3], 0.02);
  EXPECT_EQ(Frequencies({.top_k = 1}).begin()->first, 1);
}

TEST(SamplingTest, DrawsDependOnSeedRowAndPosition) {
  std::vector<int32_t> first, again, other_seed, other_row;
  for (int64_t i = 0; i < 50; ++i) {
    first.push_back(SampleToken(kLogits, {.seed = 1}, 0, i));
    again.push_back(SampleToken(kLogits, {.seed = 1}, 0, i));
    other_seed.push_back(SampleToken(kLogits, {.seed = 2}, 0, i));
    other_row.push_back(SampleToken(kLogits, {.seed = 1}, 1, i));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other_seed);
  EXPECT_NE(first, other_row);
}

TEST(SamplingTest, NumbersThatAreNoneAreNotDrawn) {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(SampleToken(std::vector<float>{nan, 0.0F, -inf}, {}, 0, i), 1);
    EXPECT_EQ(SampleToken(std::vector<float>{0.0F, inf, nan}, {}, 0, i), 1);
  }
}

}  // namespace
}  // namespace dsat::engine
