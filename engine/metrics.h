// From the steps of a run to what a trial reports (names and units: proto/trial.h).
#ifndef DSAT_ENGINE_METRICS_H_
#define DSAT_ENGINE_METRICS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "proto/trial.h"

namespace dsat::engine {

// Median, and half the interquartile range (quartiles interpolated between neighbours).
// REQUIRES: values is not empty.
Metric Summarise(std::vector<double> values);

// REQUIRES: steps is not empty.
Measurement MeasurementOf(std::span<const StepResult> steps, int64_t train_batch_size,
                          int64_t peak_bytes);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_METRICS_H_
