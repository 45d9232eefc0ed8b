// Root mean square normalization (Zhang and Sennrich 2019) over the last dimension.
#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/float_tiles.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/partial_sums.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// Rows whose parameter gradients form one partial sum. At most kMaxPieces partial sums exist.
constexpr int64_t kMinPieceRows = 16;
constexpr int64_t kMaxPieces = 64;

template <typename T>
void ForwardRow(T* y, float* rstd, const T* x, const float* weight, int64_t C, float eps) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < C; ++c)
    squares += ToFloat(x[c]) * ToFloat(x[c]);
  const float r = 1.0F / std::sqrt(squares / static_cast<float>(C) + eps);
#pragma omp simd
  for (int64_t c = 0; c < C; ++c)
    y[c] = FromResult<T>(ToFloat(x[c]) * r * weight[c]);
  *rstd = r;
}

// Writes dx of one row (adds, if `accumulate`) and adds to dw (C). `space` (2 C) takes what is
// converted to f32.
template <bool accumulate, typename T>
void BackwardRow(T* dx, float* dw, const T* dy, const T* x, const float* weight, float r, int64_t C,
                 float* space) {
  const KeptAsFloats<T> grad(dy, space);
  const KeptAsFloats<T> in(x, space + C);
  float sum = 0;  // The sum of dy * weight * normalized x.
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < C; ++c)
    sum += grad.Keep(c) * weight[c] * in.Keep(c) * r;
  const float mean = sum / static_cast<float>(C);
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) {
    const float norm = in.kept[c] * r;
    const float g = grad.kept[c];
    dw[c] += g * norm;
    const float before = accumulate ? ToFloat(dx[c]) : 0.0F;
    dx[c] = FromResult<T>(before + (g * weight[c] - norm * mean) * r);
  }
}

}  // namespace

void CpuLayers::Run(const op::RmsNormForward& op) {
  const auto& [y, rstd, x, weight, N, C, eps] = op;
  auto* space = scratch_.GetArray<float>(C);
  VisitDType(x.dtype, [&](auto type) {
    using T = decltype(type);
    const float* w = AsFloats<T>(weight, space);
    ParallelFor(num_threads_, N, N * C, [&](int64_t row) {
      ForwardRow(Data<T>(y) + row * C, rstd.f32() + row, Data<T>(x) + row * C, w, C, eps);
    });
  });
}

void CpuLayers::Run(const op::RmsNormBackward& op) {
  const auto& [dx, dweight, dy, x, weight, rstd, N, C, accumulate_dx] = op;
  const int64_t piece_rows = std::max(kMinPieceRows, (N + kMaxPieces - 1) / kMaxPieces);
  const int64_t num_pieces = (N + piece_rows - 1) / piece_rows;
  auto* partial = scratch_.GetArray<float>((num_pieces * 3 + 1) * C);  // (num_pieces, dw),
  float* rows = partial + num_pieces * C;                              // (num_pieces, 2 C),
  float* space = rows + num_pieces * 2 * C;                            // the weight (C)
  VisitDType(x.dtype, [&](auto type) {
    using T = decltype(type);
    const float* w = AsFloats<T>(weight, space);
    const auto add_row = accumulate_dx ? BackwardRow<true, T> : BackwardRow<false, T>;
    ParallelFor(num_threads_, num_pieces, N * C, [&](int64_t piece) {
      float* dw = partial + piece * C;
      std::fill(dw, dw + C, 0.0F);
      const int64_t end = std::min(N, (piece + 1) * piece_rows);
      for (int64_t row = piece * piece_rows; row < end; ++row) {
        add_row(Data<T>(dx) + row * C, dw, Data<T>(dy) + row * C, Data<T>(x) + row * C, w,
                rstd.f32()[row], C, rows + piece * 2 * C);
      }
    });
    AddPartialSums<T>(dweight, partial, num_pieces, C, C);
  });
}

}  // namespace dsat::engine
