// How parameters start.
#include "engine/runtime/state/init.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/rng.h"

namespace dsat::engine {
namespace {

template <size_t N>
double Polynomial(const std::array<double, N>& coefficients, double x) {
  double sum = 0;
  for (const double c : coefficients)
    sum = sum * x + c;
  return sum;
}

// The lower tail; the upper one by symmetry.
double TailQuantile(double p) {
  constexpr std::array kNumerator = {-7.784894002430293e-03, -3.223964580411365e-01,
                                     -2.400758277161838e+00, -2.549732539343734e+00,
                                     4.374664141464968e+00,  2.938163982698783e+00};
  constexpr std::array kDenominator = {7.784695709041462e-03, 3.224671290700398e-01,
                                       2.445134137142996e+00, 3.754408661907416e+00, 1.0};
  const double q = std::sqrt(-2 * std::log(p));
  return Polynomial(kNumerator, q) / Polynomial(kDenominator, q);
}

// Two elements share one 64-bit draw, so that any element can be reached by Seek.
void DrawNormals(Rng& rng, int64_t begin, double stddev, float* out, int64_t count) {
  uint64_t draw = 0;
  for (int64_t i = begin; i < begin + count; ++i) {
    if (i == begin || i % 2 == 0) {
      rng.Seek(static_cast<uint64_t>(i / 2));
      draw = rng.NextU64();
    }
    const uint64_t half = i % 2 == 0 ? draw & 0xffffffff : draw >> 32;
    const double p = (static_cast<double>(half) + 0.5) * 0x1p-32;
    out[i - begin] = static_cast<float>(stddev * NormalQuantile(p));
  }
}

}  // namespace

double NormalQuantile(double p) {
  constexpr std::array kNumerator = {-3.969683028665376e+01, 2.209460984245205e+02,
                                     -2.759285104469687e+02, 1.383577518672690e+02,
                                     -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array kDenominator = {-5.447609879822406e+01, 1.615858368580409e+02,
                                       -1.556989798598866e+02, 6.680131188771972e+01,
                                       -1.328068155288572e+01, 1.0};
  constexpr double kTail = 0.02425;
  if (p < kTail) return TailQuantile(p);
  if (p > 1 - kTail) return -TailQuantile(1 - p);
  const double q = p - 0.5;
  return q * Polynomial(kNumerator, q * q) / Polynomial(kDenominator, q * q);
}

void InitParam(Kernels& kernels, const ParamSpec& spec, uint64_t seed, int64_t begin, Tensor dst) {
  if (dst.data == nullptr) return;  // The counting backend has no values.
  if (spec.init != ParamSpec::Init::kNormal) {
    kernels.Fill(dst, spec.init == ParamSpec::Init::kOne ? 1.0F : 0.0F);
    return;
  }
  constexpr int64_t kChunk = 1024;
  std::array<float, kChunk> chunk;
  Rng rng(seed, StableHash(spec.name), "init");
  for (int64_t done = 0; done < dst.num_elems; done += kChunk) {
    const int64_t count = std::min(kChunk, dst.num_elems - done);
    DrawNormals(rng, begin + done, spec.stddev, chunk.data(), count);
    kernels.Cast(dst.Slice(done, count), {chunk.data(), count, DType::kF32});
  }
}

}  // namespace dsat::engine
