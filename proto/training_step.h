// A line of a training's metrics.jsonl.
#pragma once

#include <cstdint>

#include "base/json.h"

namespace dsat {

// An optimizer step, or a validation after it.
struct TrainingStep {
  int64_t step = 0;        // From 1.
  bool validated = false;  // Only `step` and `loss`, that of the validation data, have a meaning.
  double loss = 0;         // Nats per token or image. The file has null if it is not finite.
  double lr = 0;
  double grad_norm = 0;
  double loss_scale = 1;
  bool skipped = false;      // The gradients were not finite: nothing was updated.
  double samples_per_s = 0;  // Over all ranks.
  double tokens_per_s = 0;   // The same; 0 if samples are not text.
  double latency_ms = 0;     // Until the slowest rank has ended it.
  int64_t peak_bytes = 0;    // The peak of rank 0's device memory since the start of the process.
};

// {"step", "loss", "lr", "grad_norm", "loss_scale", "skipped", "throughput", "tokens_per_second",
// "latency_ms", "peak_bytes"}, or {"step", "validation_loss"}.
Json ToJson(const TrainingStep& step);
// Throws nlohmann's exceptions.
TrainingStep TrainingStepFromJson(const Json& json);

}  // namespace dsat
