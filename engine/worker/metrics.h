// Computes the metrics that a trial reports from the steps of a run (names and units:
// proto/trial.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
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

// A line of a training's history.
TrainingStep RecordOf(const StepResult& step, int64_t num_steps, const StepWork& scale,
                      int64_t peak_bytes);

// Its line in the log; `num_skipped` steps were skipped so far.
void LogStep(const TrainingStep& step, int64_t num_skipped);

// The reason for which a training ends.
class Diverged : public Error {
 public:
  explicit Diverged(const std::string& reason) : Error(ErrorCode::kFailedPrecondition, reason) {}
};

// More skipped steps in a row than a dynamic loss scale needs from its largest value to its
// smallest.
inline constexpr int64_t kMostSkippedInARow = 100;

// Losses in a row that are not finite although nothing was updated. One batch may overflow.
inline constexpr int64_t kMostBadLossesInARow = 10;

// Losses in a row that are this many times as large as the first one of the run, and as 1: the
// model is far worse than before it learned anything.
inline constexpr int64_t kMostHighLossesInARow = 50;
inline constexpr double kHighLoss = 10;

// Notices that a training has stopped learning for good. Sees every step of a run. A function of
// its results, which are equal on all ranks.
class DivergenceWatch {
 public:
  // Throws Diverged after an update with a loss or gradients that are not finite, whose parameters
  // no checkpoint should get, after kMostBadLossesInARow losses that are not finite, after
  // kMostHighLossesInARow high ones, and after kMostSkippedInARow skipped steps.
  void OnStep(const StepResult& step, int64_t num_steps);

 private:
  int64_t skipped_in_a_row_ = 0;
  int64_t bad_losses_in_a_row_ = 0;
  int64_t high_losses_in_a_row_ = 0;
  std::optional<double> first_loss_;  // A finite one.
};

// Throws Diverged if the loss of the last step of a training is not finite. Its parameters are not
// saved.
void CheckLastLoss(double loss, int64_t num_steps);

// Throws Diverged if nine tenths of the steps of a whole training, and at least nine, were skipped.
void CheckSkipped(int64_t num_skipped_steps, int64_t num_steps);

}  // namespace dsat::engine
