// Decides, step by step, which steps of a run are measured and when there are enough of them.
//
// It drops steps of the warm-up and goes on until the throughput is known well enough. It is a
// function of the latencies alone, and knows no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/measuring.h"
#include "proto/trial.h"

namespace dsat::engine {

// The measuring ends when the standard error of the throughput is this part of it or less, at the
// latest after so many times the least number of steps.
inline constexpr double kTargetError = 0.02;
inline constexpr int64_t kMostTimesLeast = 4;
// Short steps (proto/measuring.h) are measured for a second if the error is still too large.
inline constexpr double kShortMs = 1000;

struct StepWindowOptions {
  int64_t first = 3;         // The earliest step that may count, from 0.
  int64_t least = 3;         // Steps that count at least; > 0.
  bool fixed = false;        // Exactly the steps [first, first + least) count.
  double give_up_below = 0;  // Steps/s: the measuring ends once this is clearly missed; 0: never.
};

class StepWindow {
 public:
  explicit StepWindow(const StepWindowOptions& options);

  // Adds the latency of the next step, > 0. Returns whether another step is needed.
  bool Add(double latency_ms);

  // The first step that counts, from 0, as do all steps after it. A step of the warm-up, which is
  // clearly slower than those after it, does not count; nor does the first step of all, unless the
  // window is fixed. REQUIRES: Add has returned false.
  int64_t first() const { return first_; }

 private:
  int64_t num_steps() const { return static_cast<int64_t>(latencies_ms_.size()); }
  // Steps/s over the steps from `first` on.
  Metric Rate(int64_t first) const;
  bool IsWarmUp(int64_t step) const;
  bool IsHopeless() const;
  bool IsEnough() const;

  const StepWindowOptions options_;
  std::vector<double> latencies_ms_;
  int64_t first_;
};

}  // namespace dsat::engine
