// Softmax, cross entropy and its gradient in one pass over a row while the row is in cache.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/float_tiles.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// Turns one row of logits into its gradient; returns the loss.
template <typename T>
double Row(T* logits, int32_t target, int64_t V, int64_t V_used, float grad_scale) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t v = 0; v < V_used; ++v) {
    const float x = ToFloat(logits[v]);
    max = x > max ? x : max;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t v = 0; v < V_used; ++v)
    sum += Exp(ToFloat(logits[v]) - max);
  const float target_logit = ToFloat(logits[target]);
  const float factor = grad_scale / sum;
  const float target_grad = (Exp(target_logit - max) / sum - 1.0F) * grad_scale;
  MapFloats(
      V_used, logits, [=](float x) { return Exp(x - max) * factor; }, logits);
  logits[target] = FromFloat<T>(target_grad);
  for (int64_t v = V_used; v < V; ++v)
    logits[v] = FromFloat<T>(0.0F);
  return std::log(static_cast<double>(sum)) + max - target_logit;
}

}  // namespace

void CpuKernels::Run(const op::CrossEntropyInPlace& op) {
  const auto& [loss, logits, targets, N, V, V_used, grad_scale, num_ignored] = op;
  auto* losses = scratch_.GetArray<double>(N);
  VisitDType(logits.dtype, [&](auto type) {
    auto* data = Data<decltype(type)>(logits);
    ParallelFor(num_threads_, N, N * V, [=](int64_t row) {
      const int32_t target = targets[row];
      if (target == kIgnoredTarget) {
        std::fill_n(data + row * V, V, FromFloat<decltype(type)>(0.0F));
        losses[row] = 0;
        return;
      }
      DSAT_CHECK(target >= 0 && target < V_used, "target {} of {}", target, V_used);
      losses[row] = Row(data + row * V, target, V, V_used, grad_scale);
    });
  });
  if (loss == nullptr) return;
  double total = 0;
  for (int64_t row = 0; row < N; ++row)
    total += losses[row];
  *loss = total / op.Divisor();
}

}  // namespace dsat::engine
