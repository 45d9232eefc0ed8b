// A random permutation without a list of its elements.
#pragma once

#include <cstdint>

namespace dsat::engine {

// Returns the element at `position` of the permutation of [0, size) that (seed, epoch) determine: a
// Feistel network over the next power of four, iterated until the value is in range (Black and
// Rogaway 2002). REQUIRES: 0 <= position < size.
int64_t Shuffled(int64_t position, int64_t size, uint64_t seed, uint64_t epoch);

}  // namespace dsat::engine
