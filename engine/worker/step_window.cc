// Decides which steps of a run are measured.
#include "engine/worker/step_window.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "proto/trial.h"

namespace dsat::engine {
namespace {

constexpr double kMsPerSecond = 1000;
// A step is clearly slower than others if it exceeds their median by this part of it, and by so
// many times their spread (3.4 standard deviations).
constexpr double kSlowerPart = 0.03;
constexpr double kSlowerSpreads = 5;
// Steps that may still be warm-up may become so many times as fast.
constexpr double kWarmUpFactor = 1.5;

}  // namespace

StepWindow::StepWindow(const StepWindowOptions& options)
    : options_(options),
      first_(options.fixed ? options.first : std::max<int64_t>(1, options.first)) {
  DSAT_CHECK(options.first >= 0 && options.least > 0, "{}, {}", options.first, options.least);
}

bool StepWindow::Add(double latency_ms) {
  DSAT_CHECK(latency_ms > 0, "{}", latency_ms);
  latencies_ms_.push_back(latency_ms);
  if (options_.fixed) return num_steps() < options_.first + options_.least;
  while (num_steps() - first_ > options_.least && IsWarmUp(first_))
    ++first_;
  if (IsHopeless()) {
    first_ = std::min(first_, num_steps() - 2);
    return false;
  }
  return !IsEnough();
}

Metric StepWindow::Rate(int64_t first) const {
  std::vector<double> rates;
  for (auto it = latencies_ms_.begin() + first; it != latencies_ms_.end(); ++it)
    rates.push_back(kMsPerSecond / *it);
  return Summarize(std::move(rates));
}

bool StepWindow::IsWarmUp(int64_t step) const {
  const Metric later = Summarize({latencies_ms_.begin() + step + 1, latencies_ms_.end()});
  const double excess = latencies_ms_[static_cast<size_t>(step)] - later.value;
  return excess > std::max(kSlowerPart * later.value, kSlowerSpreads * later.spread);
}

// Two steps suffice, also of the warm-up, if even a much faster one would not do; else three that
// count, because the error of two says too little.
bool StepWindow::IsHopeless() const {
  if (options_.give_up_below <= 0 || num_steps() < 3) return false;
  const double fastest_ms = *std::min_element(latencies_ms_.begin() + 1, latencies_ms_.end());
  if (kWarmUpFactor * kMsPerSecond / fastest_ms < options_.give_up_below) return true;
  if (num_steps() - first_ < 3) return false;
  const Metric rate = Rate(first_);
  return rate.value + 2 * StandardError(rate) < options_.give_up_below;
}

bool StepWindow::IsEnough() const {
  if (num_steps() - first_ < options_.least) return false;
  const Metric rate = Rate(first_);
  const bool precise = StandardError(rate) <= kTargetError * rate.value;
  const int64_t earliest = std::max<int64_t>(1, options_.first);
  const int64_t measured = num_steps() - earliest;
  const double measured_ms =
      std::accumulate(latencies_ms_.begin() + earliest, latencies_ms_.end(), 0.0);
  if (measured < kShortSteps && measured_ms < (precise ? kPreciseMs : kShortMs)) return false;
  return precise || measured >= kMostTimesLeast * options_.least;
}

}  // namespace dsat::engine
