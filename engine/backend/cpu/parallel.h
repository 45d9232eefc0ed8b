// Loops and sums over fixed pieces of work. How the work is cut never depends on the number of
// threads, so that every result is the same, bit for bit, on any number of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "engine/backend/cpu/scratch.h"

namespace dsat::engine {

// Below this many elements, waking threads costs more than they save.
inline constexpr int64_t kMinParallelElems = int64_t{1} << 16;
// Elements of one piece of an elementwise kernel.
inline constexpr int64_t kBlockElems = int64_t{1} << 14;

// Calls fn(i) for i in [0, n), each once, in parallel if `num_elems` elements are worth it.
template <typename Fn>
void ParallelFor(int num_threads, int64_t n, int64_t num_elems, const Fn& fn) {
  const bool parallel = num_threads > 1 && n > 1 && num_elems >= kMinParallelElems;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (parallel)
  for (int64_t i = 0; i < n; ++i)
    fn(i);
}

// Calls fn(begin, end) for consecutive pieces of [0, n) of `block` elements (the last may be
// shorter).
template <typename Fn>
void ParallelBlocks(int num_threads, int64_t n, int64_t block, const Fn& fn) {
  ParallelFor(num_threads, (n + block - 1) / block, n,
              [&](int64_t i) { fn(i * block, std::min(n, (i + 1) * block)); });
}

// Returns the sum of sum_of(begin, end) over consecutive pieces of [0, n), added in their order.
template <typename Sum, typename SumOf>
Sum SumOverBlocks(Scratch& scratch, int num_threads, int64_t n, const SumOf& sum_of) {
  const int64_t num_blocks = (n + kBlockElems - 1) / kBlockElems;
  auto* sums = scratch.GetArray<Sum>(num_blocks);
  ParallelBlocks(num_threads, n, kBlockElems, [&](int64_t begin, int64_t end) {
    sums[begin / kBlockElems] = sum_of(begin, end);
  });
  return std::accumulate(sums, sums + num_blocks, Sum());
}

}  // namespace dsat::engine
