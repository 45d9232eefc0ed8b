// Rounds down to a multiple, or to a divisor of the fixed batch.
#include "methods/micro_batch.h"

#include <algorithm>

namespace dsat {

int64_t LegalMicroBatch(const SearchSpace& space, int64_t size) {
  const int64_t step = space.divisible_by, batch = space.samples_per_step;
  if (batch == 0) return std::max(size / step, int64_t{1}) * step;
  for (int64_t legal = std::min(size, batch) / step * step; legal > 0; legal -= step) {
    if (batch % legal == 0) return legal;
  }
  return batch % step == 0 ? step : 0;
}

}  // namespace dsat
