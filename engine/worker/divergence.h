// Notices that a training has stopped learning for good.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "engine/runtime/engine.h"

namespace dsat::engine {

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

// Sees every step of a run. A function of its results, which are equal on all ranks.
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
