// Rounds down to an allowed size: a multiple, a divisor of the fixed batch.
#include "proto/micro_batch.h"

#include <algorithm>

namespace dsat {

int64_t LargestDivisor(int64_t samples, int64_t most, int64_t step) {
  for (int64_t divisor = std::min(samples, most) / step * step; divisor > 0; divisor -= step) {
    if (samples % divisor == 0) return divisor;
  }
  return 0;
}

int64_t LegalMicroBatch(const SearchSpace& space, int64_t size) {
  const int64_t step = space.divisible_by, batch = space.samples_per_step;
  if (!space.micro_batch_sizes.empty()) {
    int64_t best = 0;
    for (const int64_t legal : space.micro_batch_sizes) {
      if (legal % step != 0 || (batch > 0 && batch % legal != 0)) continue;
      if (best == 0 || legal <= size) best = legal;
    }
    return best;
  }
  if (batch == 0) return std::max(size / step, int64_t{1}) * step;
  const int64_t largest = LargestDivisor(batch, size, step);
  return largest > 0 ? largest : batch % step == 0 ? step : 0;
}

}  // namespace dsat
