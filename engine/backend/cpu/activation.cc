// Activation functions: element by element, and the gated one of Llama's MLP (Shazeer 2020), row by
// row.
#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/float_tiles.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// 0.5 (1 + tanh(u)) = sigmoid(2 u), which keeps its relative accuracy where tanh is near -1.
// Here 2 u = kSlope (x + kCubic x^3).
constexpr float kSlope = 1.5957691216F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

float Gelu(float x) {
  return x * Sigmoid(kSlope * (x + kCubic * x * x * x));
}

float GeluDerivative(float x) {
  const float s = Sigmoid(kSlope * (x + kCubic * x * x * x));
  const float inner = kSlope * (1.0F + 3.0F * kCubic * x * x);
  return s + x * s * (1.0F - s) * inner;
}

// y[i] = fn(x[i]...).
template <typename Fn, typename... X>
void Map(int num_threads, const Tensor& y, const Fn& fn, const X&... x) {
  VisitDType(y.dtype, [&]<typename T>(T) {
    ParallelBlocks(num_threads, y.num_elems, kBlockElems, [&](int64_t begin, int64_t end) {
      MapFloats(end - begin, Data<T>(y) + begin, fn, Data<T>(x) + begin...);
    });
  });
}

}  // namespace

void CpuKernels::Run(const op::GeluForward& op) {
  const auto& [y, x] = op;
  Map(
      num_threads_, y, [](float v) { return Gelu(v); }, x);
}

void CpuKernels::Run(const op::GeluBackward& op) {
  const auto& [dx, dy, x] = op;
  Map(
      num_threads_, dx, [](float grad, float v) { return grad * GeluDerivative(v); }, dy, x);
}

void CpuKernels::Run(const op::ReluForward& op) {
  const auto& [y, x] = op;
  // NaN passes: it should be seen in the loss.
  Map(
      num_threads_, y, [](float v) { return v < 0.0F ? 0.0F : v; }, x);
}

void CpuKernels::Run(const op::ReluBackward& op) {
  const auto& [dx, dy, x] = op;
  Map(
      num_threads_, dx, [](float grad, float v) { return v > 0.0F ? grad : 0.0F; }, dy, x);
}

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
