// The micro-batch sizes that a search may use.
#pragma once

#include <cstdint>

#include "proto/experiment.h"

namespace dsat {

// The largest micro-batch size that a method proposes. Only a search of a tiny model or without a
// memory limit reaches it.
inline constexpr int64_t kLargestMicroBatch = 1'000'000;

// The largest divisor of `samples` that is at most `most` and a multiple of `step`; 0 if there is
// none. REQUIRES: samples, step > 0.
int64_t LargestDivisor(int64_t samples, int64_t most, int64_t step = 1);

// The largest micro-batch size of the space that is at most `size`: one of space.micro_batch_sizes
// if there are any, a multiple of space.divisible_by and, if the global batch is fixed, a divisor
// of space.samples_per_step. If all are larger, the smallest one; 0 if there is none.
int64_t LegalMicroBatch(const SearchSpace& space, int64_t size);

}  // namespace dsat
