// Layer normalization (Ba et al. 2016) and root mean square normalization (Zhang and Sennrich 2019)
// over the last dimension.
#include <cmath>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/float_tiles.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/partial_sums.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

constexpr float kLayerNormEpsilon = 1e-5F;

template <typename T>
void LayerNormForwardRow(T* y, float* mean, float* rstd, const T* x, const float* weight,
                         const float* bias, int64_t C) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < C; ++c)
    sum += ToFloat(x[c]);
  const float m = sum / static_cast<float>(C);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < C; ++c) {
    const float centered = ToFloat(x[c]) - m;
    squares += centered * centered;
  }
  const float r = 1.0F / std::sqrt(squares / static_cast<float>(C) + kLayerNormEpsilon);
#pragma omp simd
  for (int64_t c = 0; c < C; ++c)
    y[c] = FromResult<T>((ToFloat(x[c]) - m) * r * weight[c] + bias[c]);
  *mean = m;
  *rstd = r;
}

// Writes dx of one row (adds, if `accumulate`) and adds to dw (C), db (C). `space` (2 C) takes what
// is converted to f32.
template <bool accumulate, typename T>
void LayerNormBackwardRow(T* dx, float* dw, float* db, const T* dy, const T* x, const float* weight,
                          float m, float r, int64_t C, float* space) {
  const KeptAsFloats<T> grad(dy, space);
  const KeptAsFloats<T> in(x, space + C);
  float sum = 0;       // The sum of dy * weight.
  float sum_norm = 0;  // The sum of dy * weight * normalized x.
#pragma omp simd reduction(+ : sum, sum_norm)
  for (int64_t c = 0; c < C; ++c) {
    const float norm = (in.Keep(c) - m) * r;
    const float dnorm = grad.Keep(c) * weight[c];
    sum += dnorm;
    sum_norm += dnorm * norm;
  }
  const float mean_dnorm = sum / static_cast<float>(C);
  const float mean_norm = sum_norm / static_cast<float>(C);
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) {
    const float g = grad.kept[c];
    const float norm = (in.kept[c] - m) * r;
    const float dnorm = g * weight[c];
    dw[c] += g * norm;
    db[c] += g;
    const float before = accumulate ? ToFloat(dx[c]) : 0.0F;
    dx[c] = FromResult<T>(before + (dnorm - mean_dnorm - norm * mean_norm) * r);
  }
}

template <typename T>
void RmsNormForwardRow(T* y, float* rstd, const T* x, const float* weight, int64_t C, float eps) {
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
void RmsNormBackwardRow(T* dx, float* dw, const T* dy, const T* x, const float* weight, float r,
                        int64_t C, float* space) {
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

void CpuKernels::Run(const op::LayerNormForward& op) {
  const auto& [y, mean, rstd, x, weight, bias, N, C] = op;
  auto* space = scratch_.GetArray<float>(2 * C);
  VisitDType(x.dtype, [&]<typename T>(T) {
    const float* w = AsFloats<T>(weight, space);
    const float* b = AsFloats<T>(bias, space + C);
    ParallelFor(num_threads_, N, N * C, [&](int64_t row) {
      LayerNormForwardRow(Data<T>(y) + row * C, mean.f32() + row, rstd.f32() + row,
                          Data<T>(x) + row * C, w, b, C);
    });
  });
}

void CpuKernels::Run(const op::LayerNormBackward& op) {
  const auto& [dx, dweight, dbias, dy, x, weight, mean, rstd, N, C, accumulate_dx] = op;
  VisitDType(x.dtype, [&]<typename T>(T) {
    const auto add_row =
        accumulate_dx ? LayerNormBackwardRow<true, T> : LayerNormBackwardRow<false, T>;
    SumOverRows<T, 2>(scratch_, num_threads_, N, C, {dweight, dbias}, weight,
                      [&](int64_t row, float* sums, const float* w, float* space) {
                        add_row(Data<T>(dx) + row * C, sums, sums + C, Data<T>(dy) + row * C,
                                Data<T>(x) + row * C, w, mean.f32()[row], rstd.f32()[row], C,
                                space);
                      });
  });
}

void CpuKernels::Run(const op::RmsNormForward& op) {
  const auto& [y, rstd, x, weight, N, C, eps] = op;
  auto* space = scratch_.GetArray<float>(C);
  VisitDType(x.dtype, [&]<typename T>(T) {
    const float* w = AsFloats<T>(weight, space);
    ParallelFor(num_threads_, N, N * C, [&](int64_t row) {
      RmsNormForwardRow(Data<T>(y) + row * C, rstd.f32() + row, Data<T>(x) + row * C, w, C, eps);
    });
  });
}

void CpuKernels::Run(const op::RmsNormBackward& op) {
  const auto& [dx, dweight, dy, x, weight, rstd, N, C, accumulate_dx] = op;
  VisitDType(x.dtype, [&]<typename T>(T) {
    const auto add_row = accumulate_dx ? RmsNormBackwardRow<true, T> : RmsNormBackwardRow<false, T>;
    SumOverRows<T, 1>(scratch_, num_threads_, N, C, {dweight}, weight,
                      [&](int64_t row, float* sums, const float* w, float* space) {
                        add_row(Data<T>(dx) + row * C, sums, Data<T>(dy) + row * C,
                                Data<T>(x) + row * C, w, rstd.f32()[row], C, space);
                      });
  });
}

}  // namespace dsat::engine
