// Token and position embeddings.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// Columns that are summed in f32 at a time.
constexpr int64_t kColumns = 512;

// out (C) += the sum of dy's rows row_of(0), ..., row_of(count - 1).
template <typename T, typename RowOf>
void AddRows(T* out, const T* dy, int64_t C, int64_t count, const RowOf& row_of) {
  for (int64_t begin = 0; begin < C; begin += kColumns) {
    const int64_t num_cols = std::min(kColumns, C - begin);
    float sums[kColumns] = {};
    for (int64_t i = 0; i < count; ++i) {
      const T* in = dy + row_of(i) * C + begin;
      for (int64_t c = 0; c < num_cols; ++c)
        sums[c] += ToFloat(in[c]);
    }
    T* to = out + begin;
    for (int64_t c = 0; c < num_cols; ++c)
      to[c] = FromFloat<T>(ToFloat(to[c]) + sums[c]);
  }
}

// order (N) = the rows sorted by token, equal tokens by row: the order of every sum is fixed.
void SortRowsByToken(int32_t* order, const int32_t* tokens, int64_t N) {
  std::iota(order, order + N, 0);
  std::sort(order, order + N, [tokens](int32_t a, int32_t b) {
    return tokens[a] != tokens[b] ? tokens[a] < tokens[b] : a < b;
  });
}

}  // namespace

void CpuKernels::Run(const op::EmbeddingForward& op) {
  const auto& [y, tokens, wte, wpe, B, T, C] = op;
  const int64_t V = wte.num_elems / C;
  VisitDType(y.dtype, [&]<typename Elem>(Elem) {
    const Elem* positions = wpe.data == nullptr ? nullptr : Data<Elem>(wpe);
    ParallelFor(num_threads_, B * T, B * T * C, [&](int64_t row) {
      const int64_t token = tokens[row];
      DSAT_CHECK(token >= 0 && token < V, "token {} of {}", token, V);
      Elem* out = Data<Elem>(y) + row * C;
      const Elem* word = Data<Elem>(wte) + token * C;
      if (positions == nullptr) {
        std::memcpy(out, word, static_cast<size_t>(C) * sizeof(Elem));
        return;
      }
      const Elem* position = positions + row % T * C;
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) {
        out[c] = FromFloat<Elem>(ToFloat(word[c]) + ToFloat(position[c]));
      }
    });
  });
}

void CpuKernels::Run(const op::EmbeddingBackward& op) {
  const auto& [dwte, dwpe, dy, tokens, B, T, C] = op;
  const int64_t N = B * T;
  const int64_t V = dwte.num_elems / C;
  auto* order = scratch_.GetArray<int32_t>(N);
  SortRowsByToken(order, tokens, N);
  DSAT_CHECK(N == 0 || (tokens[order[0]] >= 0 && tokens[order[N - 1]] < V), "tokens {}..{} of {}",
             tokens[order[0]], tokens[order[N - 1]], V);
  VisitDType(dy.dtype, [&]<typename Elem>(Elem) {
    const Elem* grad = Data<Elem>(dy);
    // The iteration of a token's first row adds up all rows of the token, so that no two iterations
    // write the same row of dwte.
    ParallelFor(num_threads_, N, N * C, [&](int64_t i) {
      const int32_t token = tokens[order[i]];
      if (i > 0 && tokens[order[i - 1]] == token) return;
      int64_t count = 1;
      while (i + count < N && tokens[order[i + count]] == token)
        ++count;
      AddRows(Data<Elem>(dwte) + token * C, grad, C, count,
              [&](int64_t k) { return order[i + k]; });
    });
    if (dwpe.data == nullptr) return;
    ParallelFor(num_threads_, T, N * C, [&](int64_t t) {
      AddRows(Data<Elem>(dwpe) + t * C, grad, C, B, [&](int64_t b) { return b * T + t; });
    });
  });
}

void CpuKernels::Run(const op::TokenWindows& op) {
  const auto& [windows, tokens, B, T, context] = op;
  ParallelFor(num_threads_, B * T, B * T * context, [&](int64_t row) {
    const int64_t num_known = std::min(context, row % T + 1);
    int32_t* window = windows + row * context;
    std::fill(window, window + context - num_known, 0);
    const int32_t* end = tokens + row + 1;
    std::copy(end - num_known, end, window + context - num_known);
  });
}

}  // namespace dsat::engine
