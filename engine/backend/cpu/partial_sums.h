// Gradients of parameters that every row adds to: pieces of the rows have sums of their own, which
// are added in order, so that the result does not depend on the number of threads.
#ifndef DSAT_ENGINE_BACKEND_CPU_PARTIAL_SUMS_H_
#define DSAT_ENGINE_BACKEND_CPU_PARTIAL_SUMS_H_

#include <cstdint>

#include "engine/backend/cpu/vec.h"

namespace dsat::engine {

// out[c] += the sum of partial[piece * stride + c] over the pieces; `partial` is overwritten. Does
// nothing if `out` (C) is empty.
template <typename T>
void AddPartialSums(const Tensor& out, float* partial, int64_t num_pieces, int64_t stride,
                    int64_t C) {
  if (out.num_elems == 0) return;
  for (int64_t piece = 1; piece < num_pieces; ++piece) {
    const float* in = partial + piece * stride;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      partial[c] += in[c];
  }
  T* to = Data<T>(out);
  for (int64_t c = 0; c < C; ++c)
    to[c] = FromFloat<T>(ToFloat(to[c]) + partial[c]);
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_PARTIAL_SUMS_H_
