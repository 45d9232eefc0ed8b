// The gated activation of Llama's MLP (Shazeer 2020), row by row.
#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/float_tiles.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {

void CpuKernels::Run(const op::SwigluForward& op) {
  const auto& [y, x, N, F] = op;
  VisitDType(x.dtype, [&]<typename T>(T) {
    ParallelFor(num_threads_, N, N * F, [&](int64_t row) {
      const T* a = Data<T>(x) + row * 2 * F;
      const T* b = a + F;
      T* out = Data<T>(y) + row * F;
      MapFloats(
          F, out, [](float v, float w) { return v * Sigmoid(v) * w; }, a, b);
    });
  });
}

void CpuKernels::Run(const op::SwigluBackward& op) {
  const auto& [dx, dy, x, N, F] = op;
  VisitDType(x.dtype, [&]<typename T>(T) {
    ParallelFor(num_threads_, N, N * F, [&](int64_t row) {
      const T* a = Data<T>(x) + row * 2 * F;
      const T* b = a + F;
      const T* grad = Data<T>(dy) + row * F;
      T* da = Data<T>(dx) + row * 2 * F;
      T* db = da + F;
#pragma omp simd
      for (int64_t i = 0; i < F; ++i) {
        const float v = ToFloat(a[i]);
        const float g = ToFloat(grad[i]);
        const float s = Sigmoid(v);
        da[i] = FromResult<T>(g * ToFloat(b[i]) * s * (1.0F + v * (1.0F - s)));
        db[i] = FromResult<T>(g * v * s);
      }
    });
  });
}

}  // namespace dsat::engine
