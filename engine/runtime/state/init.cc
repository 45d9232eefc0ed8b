// The initial values of parameters.
#include "engine/runtime/state/init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <vector>

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

constexpr double kTail = 0.02425;

bool IsTail(double p) {
  return p < kTail || p > 1 - kTail;
}

double MiddleQuantile(double p) {
  constexpr std::array kNumerator = {-3.969683028665376e+01, 2.209460984245205e+02,
                                     -2.759285104469687e+02, 1.383577518672690e+02,
                                     -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array kDenominator = {-5.447609879822406e+01, 1.615858368580409e+02,
                                       -1.556989798598866e+02, 6.680131188771972e+01,
                                       -1.328068155288572e+01, 1.0};
  const double q = p - 0.5;
  return q * Polynomial(kNumerator, q * q) / Polynomial(kDenominator, q * q);
}

// Two elements share one 64-bit draw, so that any element can be reached by Seek. Quantiles of the
// middle are computed for a whole block, without a branch, before those of the tails.
void DrawNormals(Rng& rng, int64_t begin, double stddev, std::span<float> out) {
  constexpr int64_t kBlock = 256;
  std::array<double, kBlock> p = {}, quantiles = {};
  const int64_t end = begin + std::ssize(out);
  for (int64_t block = begin; block < end; block += kBlock) {
    const auto count = static_cast<size_t>(std::min(kBlock, end - block));
    uint64_t draw = 0;
    for (size_t k = 0; k < count; ++k) {
      const auto i = static_cast<uint64_t>(block) + k;
      if (k == 0 || i % 2 == 0) {
        rng.Seek(i / 2);
        draw = rng.NextU64();
      }
      const uint64_t half = i % 2 == 0 ? draw & 0xffffffff : draw >> 32;
      p[k] = (static_cast<double>(half) + 0.5) * 0x1p-32;
    }
    for (size_t k = 0; k < count; ++k)
      quantiles[k] = MiddleQuantile(p[k]);
    for (size_t k = 0; k < count; ++k) {
      const double quantile = IsTail(p[k]) ? NormalQuantile(p[k]) : quantiles[k];
      out[static_cast<size_t>(block - begin) + k] = static_cast<float>(stddev * quantile);
    }
  }
}

}  // namespace

double NormalQuantile(double p) {
  if (!IsTail(p)) return MiddleQuantile(p);
  return p < 0.5 ? TailQuantile(p) : -TailQuantile(1 - p);
}

void StartValues(const ParamSpec& spec, uint64_t seed, int64_t begin, std::span<float> out,
                 int64_t num_threads) {
  if (spec.init != ParamSpec::Init::kNormal) {
    std::ranges::fill(out, spec.init == ParamSpec::Init::kOne ? 1.0F : 0.0F);
    return;
  }
  constexpr int64_t kLeastElems = int64_t{1} << 15;  // For which a thread is worth starting.
  const auto draw = [&](int64_t from, int64_t to) {
    Rng rng(seed, StableHash(spec.name), "init");
    DrawNormals(rng, begin + from, spec.stddev,
                out.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)));
  };
  const int64_t n = std::ssize(out);
  const int64_t parts = std::clamp<int64_t>(n / kLeastElems, 1, std::max<int64_t>(1, num_threads));
  std::vector<std::jthread> helpers;
  for (int64_t part = 1; part < parts; ++part)
    helpers.emplace_back(draw, n * part / parts, n * (part + 1) / parts);
  draw(0, n / parts);
}

}  // namespace dsat::engine
