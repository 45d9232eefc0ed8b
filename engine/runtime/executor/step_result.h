// The results of one optimizer step.
#pragma once

#include <cstdint>

namespace dsat::engine {

struct StepResult {
  // The mean over micro-batches and ranks of their means, in nats per target that counts.
  double loss = 0;
  double grad_norm = 0;  // Before clipping.
  double lr = 0;
  double loss_scale = 1;  // The scale that the step used.
  bool skipped = false;   // The gradients were not finite: nothing was updated.
  // The device's clock times the three phases.
  double forward_ms = 0;         // Forward passes, including the gathering of their parameters.
  double backward_ms = 0;        // Backward passes, including gathering and gradient reduction.
  double step_ms = 0;            // Norm, update and gathering of the updated parameters.
  double latency_ms = 0;         // The whole step, until the slowest rank has ended it.
  int64_t forward_flops = 0;     // FLOPs of this rank's forward passes.
  int64_t flops = 0;             // FLOPs of this rank's forward and backward passes.
  int64_t activation_bytes = 0;  // The most that one micro-batch's activations take at a time.
  double idle_ms = 0;            // The part of latency_ms in messages between pipeline stages.
};

}  // namespace dsat::engine
