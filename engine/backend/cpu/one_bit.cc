// The kernels of 1-bit Adam: signs in packed bits, and the two halves of its frozen step.
#include <cmath>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"
#include "engine/backend/cpu/visit_update.h"

namespace dsat::engine {
namespace {

// Sum of squares of a + b.
double SumOfSquaresOfSums(const float* a, const float* b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const double x = double{a[i]} + double{b[i]};
    sum += x * x;
  }
  return sum;
}

// Eight elements.
uint8_t CompressByte(float* error, const float* values, float scale) {
  unsigned byte = 0;
  for (unsigned bit = 0; bit < 8; ++bit) {
    const float x = values[bit] + error[bit];
    const bool positive = x >= 0.0F;
    byte |= static_cast<unsigned>(positive) << bit;
    error[bit] = x - (positive ? scale : -scale);
  }
  return static_cast<uint8_t>(byte);
}

}  // namespace

void CpuKernels::Run(const op::MomentumStep& args) {
  float* m = args.m.f32();
  const float keep = args.beta1;
  const float take = (1.0F - args.beta1) * GradScale(args.scale);
  VisitUpdate(args, [&](auto*, float*, const auto* grad) {
    ParallelBlocks(num_threads_, args.m.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i)
        m[i] = keep * m[i] + take * ToFloat(grad[i]);
    });
  });
}

void CpuKernels::Run(const op::FrozenAdamStep& args) {
  Update(num_threads_, args, FrozenAdamRule(args), MomentsOf(args.m), MomentsOf(args.v));
}

void CpuKernels::Run(const op::CompressSigns& op) {
  const auto& [error, signs, scale, values] = op;
  const int64_t n = values.num_elems;
  const float* in = values.f32();
  float* rest = error.f32();
  const auto sum =
      SumOverBlocks<double>(scratch_, num_threads_, n, [=](int64_t begin, int64_t end) {
        return SumOfSquaresOfSums(in + begin, rest + begin, end - begin);
      });
  const auto mean = static_cast<float>(std::sqrt(sum / static_cast<double>(n)));
  *scale = mean;
  ParallelBlocks(num_threads_, n, kBlockElems, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 8)
      signs[i / 8] = CompressByte(rest + i, in + i, mean);
  });
}

void CpuKernels::Run(const op::DecompressSigns& op) {
  const auto& [values, signs, scale, factor, accumulate] = op;
  float* out = values.f32();
  const float keep = accumulate ? 1.0F : 0.0F;
  const float size = *scale * factor;
  ParallelBlocks(num_threads_, values.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool positive = ((signs[i / 8] >> (i % 8)) & 1) != 0;
      out[i] = (keep == 0.0F ? 0.0F : out[i]) + (positive ? size : -size);
    }
  });
}

}  // namespace dsat::engine
