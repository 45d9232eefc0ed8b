// The factor of a step's updates. It is computed in the device's memory and stays there, so that
// the host need not wait for it. For .cc and .cu files.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "engine/backend/stochastic_rounding.h"

namespace dsat::engine {

struct StepScale {
  double grad_norm = 0;  // The norm of the averaged gradient, before clipping.
  float grad_scale = 1;  // Multiplies gradients first: clipping, loss scale, averaging.
  int32_t skips = 0;     // 1: the norm is not finite, and the step's updates write nothing.
};

// Whether the step's updates write nothing, and what multiplies gradients.
DSAT_HOST_DEVICE inline bool Skips(const StepScale* scale) {
  return scale != nullptr && scale->skips != 0;
}
DSAT_HOST_DEVICE inline float GradScale(const StepScale* scale) {
  return scale == nullptr ? 1.0F : scale->grad_scale;
}

struct ClipSettings {
  double mean_factor = 1;  // Turns a gradient into the mean (or sum) over ranks, unscaled.
  double divisor = 1;      // The sum of squares is divided by it.
  double max_norm = 0;     // 0 is no limit.
  bool skips_overflow = false;
};

// The factor that brings gradients of norm `norm` to a norm of at most `max_norm` (0 is no limit):
// max_norm / (norm + 1e-6) if that is below 1, as in DeepSpeed.
DSAT_HOST_DEVICE inline double ClipFactor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return max_norm > 0 && factor < 1.0 ? factor : 1.0;
}

// From the gradients' sum of squares.
DSAT_HOST_DEVICE inline StepScale StepScaleOf(double squares, const ClipSettings& settings) {
  const double norm = sqrt(squares / settings.divisor) * settings.mean_factor;
  const bool finite = norm <= DBL_MAX;
  const double clip = ClipFactor(norm, settings.max_norm);
  return {norm, static_cast<float>(clip * settings.mean_factor),
          settings.skips_overflow && !finite ? 1 : 0};
}

}  // namespace dsat::engine
