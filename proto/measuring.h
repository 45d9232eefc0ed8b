// How long a trial measures, if its steps take equally long.
#pragma once

#include <algorithm>
#include <cstdint>

#include "proto/experiment.h"

namespace dsat {

// Short steps cost little: up to this many are measured, until they take half a second together
// (engine/worker/step_window.h, python/dsat/_window.py).
inline constexpr int64_t kShortSteps = 30;
inline constexpr double kPreciseMs = 500;

// The seconds of all steps of a trial, those before the first measured one included.
inline double MeasuringSeconds(const SearchOptions& options, double step_s) {
  const auto before = static_cast<double>(options.start_profile_step);
  const auto least = static_cast<double>(options.end_profile_step) + 1 - before;
  const double shortest_s = std::min(kShortSteps * step_s, kPreciseMs / 1e3);
  return before * step_s + std::max(least * step_s, shortest_s);
}

}  // namespace dsat
