// Computes the metrics that a trial reports from the steps of a run (names and units:
// proto/trial.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/layer.h"
#include "engine/runtime/engine.h"
#include "proto/training_step.h"
#include "proto/trial.h"

namespace dsat::engine {

// The amount of work in a step.
struct StepWork {
  int64_t train_batch_size = 1;
  int64_t tokens_per_sample = 0;  // 0 if samples are not text.
  double peak_flops = 0;          // FLOP/s of a rank's device; 0 if unknown.
};

// The parameters of the model's two largest units together.
int64_t TwoUnitsNumParams(const Model& model);

// The most host memory that this process has had resident so far.
int64_t PeakResidentBytes();

// REQUIRES: steps is not empty.
Measurement MeasurementOf(std::span<const StepResult> steps, const StepWork& scale,
                          int64_t peak_bytes);

// An element of ModelProfile::timings. REQUIRES: steps is not empty.
std::vector<double> TimingOf(int64_t micro_batch_size, std::span<const StepResult> steps);

// A line of a training's history.
TrainingStep RecordOf(const StepResult& step, int64_t num_steps, const StepWork& scale,
                      int64_t peak_bytes);

// Its line in the log; `num_skipped` steps were skipped so far.
void LogStep(const TrainingStep& step, int64_t num_skipped);

}  // namespace dsat::engine
