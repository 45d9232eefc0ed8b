// Layer normalization (Ba et al. 2016) over the last dimension.
#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/float_tiles.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/partial_sums.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

constexpr float kEpsilon = 1e-5F;

// Rows whose parameter gradients form one partial sum. At most kMaxPieces partial sums exist.
constexpr int64_t kMinPieceRows = 16;
constexpr int64_t kMaxPieces = 64;

template <typename T>
struct Forward {
  T* y;
  float* mean;
  float* rstd;
  const T* x;
  const float* weight;
  const float* bias;
  int64_t C;

  void Row(int64_t row) const {
    const T* in = x + row * C;
    const float* w = weight;  // Through `this` it would be loaded anew for every element.
    const float* b = bias;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; ++c)
      sum += ToFloat(in[c]);
    const float m = sum / static_cast<float>(C);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < C; ++c) {
      const float centered = ToFloat(in[c]) - m;
      squares += centered * centered;
    }
    const float r = 1.0F / std::sqrt(squares / static_cast<float>(C) + kEpsilon);
    T* out = y + row * C;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) {
      out[c] = FromResult<T>((ToFloat(in[c]) - m) * r * w[c] + b[c]);
    }
    mean[row] = m;
    rstd[row] = r;
  }
};

template <typename T>
struct Backward {
  T* dx;
  const T* dy;
  const T* x;
  const float* weight;
  const float* mean;
  const float* rstd;
  int64_t C;

  // Writes dx of one row (adds, if `accumulate`) and adds to dw (C), db (C). `space` (2 C) takes
  // what is converted to f32.
  template <bool accumulate>
  void Row(int64_t row, float* dw, float* db, float* space) const {
    const KeptAsFloats<T> grad(dy + row * C, space);
    const KeptAsFloats<T> in(x + row * C, space + C);
    const float* w = weight;  // Through `this` it would be loaded anew for every element.
    const float m = mean[row];
    const float r = rstd[row];
    float sum = 0;       // The sum of dy * weight.
    float sum_norm = 0;  // The sum of dy * weight * normalized x.
#pragma omp simd reduction(+ : sum, sum_norm)
    for (int64_t c = 0; c < C; ++c) {
      const float norm = (in.Keep(c) - m) * r;
      const float dnorm = grad.Keep(c) * w[c];
      sum += dnorm;
      sum_norm += dnorm * norm;
    }
    const float mean_dnorm = sum / static_cast<float>(C);
    const float mean_norm = sum_norm / static_cast<float>(C);
    T* out = dx + row * C;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) {
      const float g = grad.kept[c];
      const float norm = (in.kept[c] - m) * r;
      const float dnorm = g * w[c];
      dw[c] += g * norm;
      db[c] += g;
      const float before = accumulate ? ToFloat(out[c]) : 0.0F;
      out[c] = FromResult<T>(before + (dnorm - mean_dnorm - norm * mean_norm) * r);
    }
  }
};

}  // namespace

void CpuLayers::Run(const op::LayerNormForward& op) {
  const auto& [y, mean, rstd, x, weight, bias, N, C] = op;
  auto* space = scratch_.GetArray<float>(2 * C);
  VisitDType(x.dtype, [&](auto type) {
    using T = decltype(type);
    const Forward<T> forward{Data<T>(y),
                             mean.f32(),
                             rstd.f32(),
                             Data<T>(x),
                             AsFloats<T>(weight, space),
                             AsFloats<T>(bias, space + C),
                             C};
    ParallelFor(num_threads_, N, N * C, [&](int64_t row) { forward.Row(row); });
  });
}

void CpuLayers::Run(const op::LayerNormBackward& op) {
  const auto& [dx, dweight, dbias, dy, x, weight, mean, rstd, N, C, accumulate_dx] = op;
  const int64_t piece_rows = std::max(kMinPieceRows, (N + kMaxPieces - 1) / kMaxPieces);
  const int64_t num_pieces = (N + piece_rows - 1) / piece_rows;
  auto* partial = scratch_.GetArray<float>((num_pieces * 4 + 1) * C);  // (num_pieces, [dw | db]),
  float* rows = partial + num_pieces * 2 * C;                          // (num_pieces, 2 C),
  float* space = rows + num_pieces * 2 * C;                            // the weight (C)
  VisitDType(x.dtype, [&](auto type) {
    using T = decltype(type);
    const Backward<T> backward{Data<T>(dx), Data<T>(dy), Data<T>(x), AsFloats<T>(weight, space),
                               mean.f32(),  rstd.f32(),  C};
    ParallelFor(num_threads_, num_pieces, N * C, [&](int64_t piece) {
      float* dw = partial + piece * 2 * C;
      std::fill(dw, dw + 2 * C, 0.0F);
      const int64_t end = std::min(N, (piece + 1) * piece_rows);
      float* kept = rows + piece * 2 * C;
      for (int64_t row = piece * piece_rows; row < end; ++row) {
        if (accumulate_dx) {
          backward.template Row<true>(row, dw, dw + C, kept);
        } else {
          backward.template Row<false>(row, dw, dw + C, kept);
        }
      }
    });
    AddPartialSums<T>(dweight, partial, num_pieces, 2 * C, C);
    AddPartialSums<T>(dbias, partial + C, num_pieces, 2 * C, C);
  });
}

}  // namespace dsat::engine
