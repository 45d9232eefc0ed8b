// Tests which steps are measured, by their latencies alone.
#include "engine/worker/step_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/rng.h"
#include "proto/trial.h"

namespace dsat::engine {
namespace {

struct Decided {
  int64_t first = 0;
  int64_t num_steps = 0;
  int64_t counted() const { return num_steps - first; }
};

// The decision for a run whose step i takes latency_ms(i).
Decided Decide(const StepWindowOptions& options, const std::function<double(int64_t)>& latency_ms) {
  StepWindow window(options);
  int64_t step = 0;
  while (window.Add(latency_ms(step)) && step < 10'000)
    ++step;
  return {window.first(), step + 1};
}

// The listed steps, and then the last of them for ever.
std::function<double(int64_t)> Listed(std::vector<double> latencies_ms) {
  return [latencies_ms](int64_t step) {
    return latencies_ms[std::min(static_cast<size_t>(step), latencies_ms.size() - 1)];
  };
}

// Normal noise around `mean_ms`, of standard deviation `part` of it.
std::function<double(int64_t)> Noisy(double mean_ms, double part, uint64_t seed = 1) {
  return [mean_ms, part, seed](int64_t step) {
    return mean_ms * (1 + part * Rng(seed, static_cast<uint64_t>(step), "noise").Normal());
  };
}

constexpr double kLongMs = 1000;  // So long that no number of steps is short.

TEST(StepWindowTest, SteadyStepsEndAfterTheLeastNumber) {
  const Decided decided = Decide({}, Listed({kLongMs}));
  EXPECT_EQ(decided.first, 3);
  EXPECT_EQ(decided.num_steps, 6);
  EXPECT_EQ(Decide({.first = 5, .least = 4}, Listed({kLongMs})).num_steps, 9);
}

TEST(StepWindowTest, TheFirstStepNeverCounts) {
  const Decided decided = Decide({.first = 0, .least = 1}, Listed({3 * kLongMs, kLongMs}));
  EXPECT_EQ(decided.first, 1);
  EXPECT_EQ(decided.num_steps, 3) << "one step says nothing of its error";
}

TEST(StepWindowTest, AFixedWindowIsExactlyWhatWasAskedFor) {
  const auto slowing = [](int64_t step) { return kLongMs * static_cast<double>(1 + step); };
  const Decided first = Decide({.first = 0, .least = 1, .fixed = true}, slowing);
  EXPECT_EQ(first.first, 0);
  EXPECT_EQ(first.num_steps, 1);
  const Decided later =
      Decide({.first = 3, .least = 3, .fixed = true, .give_up_below = 1e9}, slowing);
  EXPECT_EQ(later.first, 3);
  EXPECT_EQ(later.num_steps, 6);
}

TEST(StepWindowTest, WarmUpThatLastsLongerIsDropped) {
  const auto warm_up = Listed({9000, 4000, 3000, 2500, 2000, 1600, 1300, 1100, 1000});
  const Decided decided = Decide({}, warm_up);
  EXPECT_EQ(decided.first, 8);
  EXPECT_EQ(decided.counted(), 3);
}

TEST(StepWindowTest, StepsAsFastAsTheNextAreNotDropped) {
  const Decided decided = Decide({}, Listed({9000, 4000, 3000, 1005, 1000, 1002, 1004}));
  EXPECT_EQ(decided.first, 3);
  EXPECT_EQ(decided.counted(), 3);
}

TEST(StepWindowTest, NoisyStepsAreMeasuredUntilTheErrorIsSmallOrTheCapIsReached) {
  int64_t between = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto latency_ms = Noisy(kLongMs, 0.02, seed);
    const Decided decided = Decide({}, latency_ms);
    EXPECT_GE(decided.counted(), 3);
    EXPECT_LE(decided.num_steps, 3 + 4 * 3);
    std::vector<double> rates;
    for (int64_t step = decided.first; step < decided.num_steps; ++step)
      rates.push_back(1000 / latency_ms(step));
    const Metric rate = Summarize(rates);
    const bool capped = decided.num_steps == 15;
    EXPECT_TRUE(capped || StandardError(rate) <= 0.02 * rate.value);
    between += decided.counted() > 3 && !capped ? 1 : 0;
  }
  EXPECT_GT(between, 10) << "the number of steps follows the noise";
  EXPECT_EQ(Decide({}, Noisy(kLongMs, 0.3)).num_steps, 15);
}

TEST(StepWindowTest, ShortStepsAreCheapAndMeasuredMoreOften) {
  EXPECT_EQ(Decide({}, Listed({1})).counted(), 30);
  EXPECT_EQ(Decide({}, Listed({50})).counted(), 10) << "half a second";
  EXPECT_EQ(Decide({}, Noisy(50, 0.3)).num_steps, 3 + 20) << "about a second";
}

TEST(StepWindowTest, AHopelessRunEndsAfterTwoStepsAndCountsThem) {
  const StepWindowOptions options = {.give_up_below = 2.0};
  const Decided decided = Decide(options, Listed({5000, 1000, 1010}));
  EXPECT_EQ(decided.first, 1);
  EXPECT_EQ(decided.num_steps, 3);
}

TEST(StepWindowTest, ASlowRunEndsOnceItIsClearlyTooSlow) {
  const StepWindowOptions options = {.least = 10, .give_up_below = 1.1};
  EXPECT_EQ(Decide(options, Listed({5000, 1000, 1000})).num_steps, 6) << "three that count";
  EXPECT_EQ(Decide(options, Listed({5000, 900, 900})).num_steps, 13) << "fast enough";
  // A warm-up that looks too slow does not end a run that may become fast enough.
  EXPECT_EQ(Decide(options, Listed({5000, 1200, 1100, 900})).num_steps, 13);
  EXPECT_GT(Decide(options, Noisy(kLongMs, 0.1)).num_steps, 6) << "not clear yet";
}

}  // namespace
}  // namespace dsat::engine
