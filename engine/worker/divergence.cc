// Notices that a training has stopped learning for good.
#include "engine/worker/divergence.h"

#include <algorithm>
#include <cmath>

namespace dsat::engine {
namespace {

constexpr int64_t kFewSkipped = 9;

constexpr char kWaysOut[] =
    "lower the learning rate, warm it up, set gradient_clipping, or train in bf16 or f32";

}  // namespace

void DivergenceWatch::OnStep(const StepResult& step, int64_t num_steps) {
  skipped_in_a_row_ = step.skipped ? skipped_in_a_row_ + 1 : 0;
  if (skipped_in_a_row_ >= kMostSkippedInARow) {
    throw Diverged(fmt::format(
        "diverged: the gradients of the last {} steps, up to step {}, were not finite (loss scale "
        "{}); {}",
        skipped_in_a_row_, num_steps, step.loss_scale, kWaysOut));
  }
  bad_losses_in_a_row_ = std::isfinite(step.loss) ? 0 : bad_losses_in_a_row_ + 1;
  if (bad_losses_in_a_row_ >= kMostBadLossesInARow) {
    throw Diverged(
        fmt::format("diverged: the losses of the last {} steps, up to step {}, were not finite; {}",
                    bad_losses_in_a_row_, num_steps, kWaysOut));
  }
  if (std::isfinite(step.loss) && !first_loss_) first_loss_ = step.loss;
  const bool is_high = first_loss_ && step.loss > kHighLoss * std::max(*first_loss_, 1.0);
  high_losses_in_a_row_ = is_high ? high_losses_in_a_row_ + 1 : 0;
  if (high_losses_in_a_row_ >= kMostHighLossesInARow) {
    throw Diverged(fmt::format(
        "diverged: the losses of the last {} steps, up to step {}, are more than {} times as high "
        "as the first one ({:.4g}; the last one is {:.4g}); {}",
        high_losses_in_a_row_, num_steps, kHighLoss, *first_loss_, step.loss, kWaysOut));
  }
  if (step.skipped || (std::isfinite(step.loss) && std::isfinite(step.grad_norm))) return;
  throw Diverged(
      fmt::format("diverged at step {}: the loss is {}, the norm of the gradients {}; {}",
                  num_steps, step.loss, step.grad_norm, kWaysOut));
}

void CheckLastLoss(double loss, int64_t num_steps) {
  if (std::isfinite(loss)) return;
  throw Diverged(
      fmt::format("diverged: the loss of the last step, {}, is not finite, and its parameters are "
                  "not saved; {}",
                  num_steps, kWaysOut));
}

void CheckSkipped(int64_t num_skipped_steps, int64_t num_steps) {
  if (num_skipped_steps < kFewSkipped || num_skipped_steps * 10 < num_steps * 9) return;
  throw Diverged(
      fmt::format("diverged: {} of {} steps were skipped, because their gradients were not finite; "
                  "{}; with fp16, a smaller initial_scale_power skips fewer",
                  num_skipped_steps, num_steps, kWaysOut));
}

}  // namespace dsat::engine
