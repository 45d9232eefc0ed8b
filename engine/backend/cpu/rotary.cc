// Rotary position embedding (Su et al. 2021).
#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// Rotates the heads of one row by the angles with these cosines and (signed) sines (half).
template <typename T>
void RotateRow(T* row, const float* cosines, const float* sines, float sign, int64_t heads,
               int64_t half) {
  for (int64_t h = 0; h < heads; ++h) {
    T* low = row + h * 2 * half;
    T* high = low + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = ToFloat(low[i]);
      const float b = ToFloat(high[i]);
      const float s = sign * sines[i];
      low[i] = FromFloat<T>(a * cosines[i] - b * s);
      high[i] = FromFloat<T>(b * cosines[i] + a * s);
    }
  }
}

}  // namespace

void RotaryTable::Prepare(std::span<const float> frequencies, int64_t T) {
  if (T <= T_ && std::ranges::equal(frequencies, frequencies_)) return;
  T_ = T;
  frequencies_.assign(frequencies.begin(), frequencies.end());
  const auto half = static_cast<int64_t>(frequencies.size());
  values_.resize(static_cast<size_t>(2 * T * half));
  for (int64_t t = 0; t < T; ++t) {
    float* row = values_.data() + t * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      // The angle in f32, as models are trained with.
      const float angle = static_cast<float>(t) * frequencies_[static_cast<size_t>(i)];
      row[i] = static_cast<float>(std::cos(double{angle}));
      row[half + i] = static_cast<float>(std::sin(double{angle}));
    }
  }
}

void CpuKernels::Run(const op::RotateInPlace& op) {
  const auto& [x, frequencies, negative, shape] = op;
  const int64_t half = shape.head_channels / 2;
  const int64_t rows = shape.B * shape.T;
  rotary_table_.Prepare(frequencies, shape.T);
  VisitDType(x.dtype, [&]<typename T>(T) {
    ParallelFor(num_threads_, rows, rows * shape.stride, [&](int64_t row) {
      const float* cosines = rotary_table_.Row(row % shape.T);
      RotateRow(Data<T>(x) + row * shape.stride, cosines, cosines + half, negative ? -1.0F : 1.0F,
                shape.heads, half);
    });
  });
}

}  // namespace dsat::engine
