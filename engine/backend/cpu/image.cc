// What image models need beside normalization: convolutions and the mean over pixels.
#include <algorithm>

#include "engine/backend/cost.h"
#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

constexpr int64_t kColumns = 256;  // Channels that are summed at a time.

}  // namespace

void CpuKernels::ConvForward(Tensor y, Tensor x, Tensor weight, const ConvShape& shape) {
  flops_ += ConvFlops(shape);
  conv_.Forward(y, x, weight, shape);
}

void CpuKernels::ConvInputGrad(Tensor dx, Tensor dy, Tensor weight, const ConvShape& shape) {
  flops_ += ConvFlops(shape);
  conv_.InputGrad(dx, dy, weight, shape);
}

void CpuKernels::ConvWeightGrad(Tensor dweight, Tensor dy, Tensor x, const ConvShape& shape) {
  flops_ += ConvFlops(shape);
  conv_.WeightGrad(dweight, dy, x, shape);
}

void CpuKernels::MeanPoolForward(Tensor y, Tensor x, int64_t N, int64_t P, int64_t C) {
  DSAT_CHECK(y.num_elems >= N * C && x.num_elems >= N * P * C, "y {}, x {} of {} x {} x {}",
             y.num_elems, x.num_elems, N, P, C);
  VisitDType(x.dtype, [&](auto type) {
    using T = decltype(type);
    ParallelFor(num_threads_, N, N * P * C, [&](int64_t n) {
      for (int64_t begin = 0; begin < C; begin += kColumns) {
        const int64_t count = std::min(kColumns, C - begin);
        float sums[kColumns] = {};
        for (int64_t p = 0; p < P; ++p) {
          const T* in = Data<T>(x) + (n * P + p) * C + begin;
          for (int64_t c = 0; c < count; ++c)
            sums[c] += ToFloat(in[c]);
        }
        for (int64_t c = 0; c < count; ++c)
          Data<T>(y)[n * C + begin + c] = FromFloat<T>(sums[c] / static_cast<float>(P));
      }
    });
  });
}

void CpuKernels::MeanPoolBackward(Tensor dx, Tensor dy, int64_t N, int64_t P, int64_t C) {
  DSAT_CHECK(dy.num_elems >= N * C && dx.num_elems >= N * P * C, "dy {}, dx {} of {} x {} x {}",
             dy.num_elems, dx.num_elems, N, P, C);
  const float factor = 1.0F / static_cast<float>(P);
  VisitDType(dx.dtype, [&](auto type) {
    using T = decltype(type);
    ParallelFor(num_threads_, N * P, N * P * C, [&](int64_t row) {
      const T* in = Data<T>(dy) + row / P * C;
      T* out = Data<T>(dx) + row * C;
      for (int64_t c = 0; c < C; ++c)
        out[c] = FromFloat<T>(ToFloat(in[c]) * factor);
    });
  });
}

}  // namespace dsat::engine
