// The mean over the pixels of images.
#include <algorithm>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

constexpr int64_t kColumns = 256;  // Channels that are summed at a time.

}  // namespace

void CpuKernels::Run(const op::MeanPoolForward& op) {
  const auto& [y, x, N, P, C] = op;
  VisitDType(x.dtype, [&]<typename T>(T) {
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

void CpuKernels::Run(const op::MeanPoolBackward& op) {
  const auto& [dx, dy, N, P, C] = op;
  const float factor = 1.0F / static_cast<float>(P);
  VisitDType(dx.dtype, [&]<typename T>(T) {
    ParallelFor(num_threads_, N * P, N * P * C, [&](int64_t row) {
      const T* in = Data<T>(dy) + row / P * C;
      T* out = Data<T>(dx) + row * C;
      for (int64_t c = 0; c < C; ++c)
        out[c] = FromFloat<T>(ToFloat(in[c]) * factor);
    });
  });
}

}  // namespace dsat::engine
