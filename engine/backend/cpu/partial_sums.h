// Gradients of parameters that every row adds to: pieces of the rows have sums of their own, which
// are added in order, so that the result does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/backend/cpu/float_tiles.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/scratch.h"
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

// Adds to the `outs` (C) of a normalization with `weight` (C): calls add_row(row, sums, w, space)
// for each of N rows, where `sums` (kOuts, C) are those of a piece of the rows, `w` is the weight
// in f32 and `space` (2 C) is the piece's own.
template <typename T, size_t kOuts, typename AddRow>
void SumOverRows(Scratch& scratch, int num_threads, int64_t N, int64_t C,
                 const std::array<Tensor, kOuts>& outs, const Tensor& weight,
                 const AddRow& add_row) {
  constexpr int64_t kMinPieceRows = 16;
  constexpr int64_t kMaxPieces = 64;
  constexpr int64_t kNumOuts = kOuts;
  const int64_t piece_rows = std::max(kMinPieceRows, (N + kMaxPieces - 1) / kMaxPieces);
  const int64_t num_pieces = (N + piece_rows - 1) / piece_rows;
  auto* partial = scratch.GetArray<float>((num_pieces * (kNumOuts + 2) + 1) * C);
  float* rows = partial + num_pieces * kNumOuts * C;  // (num_pieces, 2 C)
  const float* w = AsFloats<T>(weight, rows + num_pieces * 2 * C);
  ParallelFor(num_threads, num_pieces, N * C, [&](int64_t piece) {
    float* sums = partial + piece * kNumOuts * C;
    std::fill(sums, sums + kNumOuts * C, 0.0F);
    const int64_t end = std::min(N, (piece + 1) * piece_rows);
    for (int64_t row = piece * piece_rows; row < end; ++row)
      add_row(row, sums, w, rows + piece * 2 * C);
  });
  for (size_t i = 0; i < kOuts; ++i) {
    AddPartialSums<T>(outs[i], partial + static_cast<int64_t>(i) * C, num_pieces, kNumOuts * C, C);
  }
}

}  // namespace dsat::engine
