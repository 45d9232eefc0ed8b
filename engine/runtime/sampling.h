// Draws tokens from logits.
#pragma once

#include <cstdint>
#include <span>

namespace dsat::engine {

struct SamplingOptions {
  double temperature = 1;  // Divides the logits; 0: always the most probable token.
  int64_t top_k = 0;       // Only the k most probable tokens; 0: all.
  uint64_t seed = 0;
};

// A token drawn with the probabilities softmax(logits / temperature) of the top_k; `row` and
// `position` separate the draws of one seed, so that the same (seed, row, position, logits) give
// the same token. Of equal logits the lower token counts as the more probable. NaN logits are never
// drawn. REQUIRES: logits are not empty; temperature and top_k are not negative.
int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, int64_t row,
                    int64_t position);

}  // namespace dsat::engine
