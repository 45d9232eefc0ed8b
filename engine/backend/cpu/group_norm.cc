// Group normalization of images (Wu and He 2018), one image after the other. Everything that pixels
// contribute is summed per channel first; groups are made of channels' sums.
#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/partial_sums.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

constexpr float kEpsilon = 1e-5F;

// Calls fn(group, first channel, one past the last) for every group.
template <typename Fn>
void ForEachGroup(const GroupNormShape& shape, const Fn& fn) {
  const int64_t channels = shape.C / shape.G;
  for (int64_t g = 0; g < shape.G; ++g)
    fn(g, g * channels, (g + 1) * channels);
}

// means[c] = the mean over c's group of sums (C) over P pixels.
void GroupMeans(const GroupNormShape& shape, const double* sums, float* means) {
  const auto count = static_cast<double>(shape.P * (shape.C / shape.G));
  ForEachGroup(shape, [&](int64_t, int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t c = begin; c < end; ++c)
      sum += sums[c];
    std::fill(means + begin, means + end, static_cast<float>(sum / count));
  });
}

// The workspace of one image: sums (C) in double, then rows of C floats.
struct Workspace {
  static int64_t Doubles(int64_t C) { return 4 * C; }

  Workspace(double* data, int64_t image, int64_t C)
      : sums(data + image * Doubles(C)),
        sums2(sums + C),
        row0(reinterpret_cast<float*>(sums2 + C)),
        row1(row0 + C),
        row2(row1 + C),
        row3(row2 + C) {}

  double* sums;
  double* sums2;
  float *row0, *row1, *row2, *row3;
};

// y (P, C) of one image; mean, rstd (G).
template <typename T>
void ForwardImage(const GroupNormShape& s, T* y, float* mean, float* rstd, const T* x,
                  const T* weight, const T* bias, const Workspace& work) {
  std::fill_n(work.sums, 2 * s.C, 0.0);
  for (int64_t p = 0; p < s.P; ++p) {
    for (int64_t c = 0; c < s.C; ++c)
      work.sums[c] += ToFloat(x[p * s.C + c]);
  }
  float* m = work.row0;
  GroupMeans(s, work.sums, m);
  for (int64_t p = 0; p < s.P; ++p) {
    for (int64_t c = 0; c < s.C; ++c) {
      const float centered = ToFloat(x[p * s.C + c]) - m[c];
      work.sums2[c] += centered * centered;
    }
  }
  float* scale = work.row1;  // The variance first.
  GroupMeans(s, work.sums2, scale);
  ForEachGroup(s, [&](int64_t g, int64_t begin, int64_t end) {
    mean[g] = m[begin];
    rstd[g] = 1.0F / std::sqrt(scale[begin] + kEpsilon);
    for (int64_t c = begin; c < end; ++c)
      scale[c] = rstd[g] * ToFloat(weight[c]);
  });
  for (int64_t p = 0; p < s.P; ++p) {
#pragma omp simd
    for (int64_t c = 0; c < s.C; ++c) {
      y[p * s.C + c] = FromFloat<T>((ToFloat(x[p * s.C + c]) - m[c]) * scale[c] + ToFloat(bias[c]));
    }
  }
}

// dx (P, C) of one image; dw, db (C) of this image alone are written.
template <typename T>
void BackwardImage(const GroupNormShape& s, T* dx, float* dw, float* db, const T* dy, const T* x,
                   const T* weight, const float* mean, const float* rstd, const Workspace& work) {
  float* m = work.row0;
  float* r = work.row1;
  ForEachGroup(s, [&](int64_t g, int64_t begin, int64_t end) {
    std::fill(m + begin, m + end, mean[g]);
    std::fill(r + begin, r + end, rstd[g]);
  });
  std::fill_n(work.sums, 2 * s.C, 0.0);
  for (int64_t p = 0; p < s.P; ++p) {
    for (int64_t c = 0; c < s.C; ++c) {
      const float g = ToFloat(dy[p * s.C + c]);
      work.sums[c] += g;
      work.sums2[c] += g * (ToFloat(x[p * s.C + c]) - m[c]) * r[c];
    }
  }
  for (int64_t c = 0; c < s.C; ++c) {
    db[c] = static_cast<float>(work.sums[c]);
    dw[c] = static_cast<float>(work.sums2[c]);
    work.sums[c] *= ToFloat(weight[c]);
    work.sums2[c] *= ToFloat(weight[c]);
  }
  float* mean_dnorm = work.row2;
  float* mean_norm = work.row3;
  GroupMeans(s, work.sums, mean_dnorm);
  GroupMeans(s, work.sums2, mean_norm);
  for (int64_t p = 0; p < s.P; ++p) {
#pragma omp simd
    for (int64_t c = 0; c < s.C; ++c) {
      const int64_t i = p * s.C + c;
      const float norm = (ToFloat(x[i]) - m[c]) * r[c];
      const float dnorm = ToFloat(dy[i]) * ToFloat(weight[c]);
      dx[i] = FromFloat<T>((dnorm - mean_dnorm[c] - norm * mean_norm[c]) * r[c]);
    }
  }
}

}  // namespace

void CpuKernels::Run(const op::GroupNormForward& op) {
  const auto& [y, mean, rstd, x, weight, bias, shape] = op;
  auto* work = scratch_.GetArray<double>(shape.N * Workspace::Doubles(shape.C));
  VisitDType(x.dtype, [&]<typename T>(T) {
    const int64_t size = shape.P * shape.C;
    ParallelFor(num_threads_, shape.N, shape.NumElems(), [&](int64_t n) {
      ForwardImage(shape, Data<T>(y) + n * size, mean.f32() + n * shape.G, rstd.f32() + n * shape.G,
                   Data<T>(x) + n * size, Data<T>(weight), Data<T>(bias),
                   Workspace(work, n, shape.C));
    });
  });
}

void CpuKernels::Run(const op::GroupNormBackward& op) {
  const auto& [dx, dweight, dbias, dy, x, weight, mean, rstd, shape] = op;
  const int64_t C = shape.C;
  const int64_t work_doubles = shape.N * Workspace::Doubles(C);
  auto* work = scratch_.GetArray<double>(work_doubles + shape.N * C);
  auto* partial = reinterpret_cast<float*>(work + work_doubles);  // (N, [dw (C) | db (C)])
  VisitDType(x.dtype, [&]<typename T>(T) {
    const int64_t size = shape.P * C;
    ParallelFor(num_threads_, shape.N, shape.NumElems(), [&](int64_t n) {
      float* dw = partial + n * 2 * C;
      BackwardImage(shape, Data<T>(dx) + n * size, dw, dw + C, Data<T>(dy) + n * size,
                    Data<T>(x) + n * size, Data<T>(weight), mean.f32() + n * shape.G,
                    rstd.f32() + n * shape.G, Workspace(work, n, C));
    });
    AddPartialSums<T>(dweight, partial, shape.N, 2 * C, C);
    AddPartialSums<T>(dbias, partial + C, shape.N, 2 * C, C);
  });
}

}  // namespace dsat::engine
