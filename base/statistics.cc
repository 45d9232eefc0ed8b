// Quantiles by bisection of the closed form of the distribution, and means.
#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace dsat {
namespace {

// The probability that |t| <= value: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4, in
// theta = atan(value / sqrt(dof)).
double CentralProbability(double value, int64_t dof) {
  const double theta = std::atan(value / std::sqrt(static_cast<double>(dof)));
  const double cosine = std::cos(theta), sine = std::sin(theta);
  const bool odd = dof % 2 == 1;
  double term = odd ? cosine : 1;
  double sum = dof == 1 ? 0 : term;
  for (int64_t k = odd ? 3 : 2; k <= dof - 2; k += 2) {
    term *= cosine * cosine * static_cast<double>(k - 1) / static_cast<double>(k);
    sum += term;
  }
  return odd ? 2 / std::numbers::pi * (theta + sine * sum) : sine * sum;
}

}  // namespace

double StudentQuantile(double probability, int64_t dof) {
  DSAT_CHECK(probability > 0 && probability < 1 && dof >= 1, "{} {}", probability, dof);
  if (probability < 0.5) return -StudentQuantile(1 - probability, dof);
  const double central = 2 * probability - 1;
  double low = 0, high = 1;
  while (CentralProbability(high, dof) < central && std::isfinite(high))
    high *= 2;
  for (int i = 0; i < 100 && high - low > 1e-12 * high; ++i) {
    const double middle = (low + high) / 2;
    (CentralProbability(middle, dof) < central ? low : high) = middle;
  }
  return (low + high) / 2;
}

double StudentProbability(double value, int64_t dof) {
  const double tail = (1 - CentralProbability(std::abs(value), dof)) / 2;
  return value < 0 ? tail : 1 - tail;
}

// With f and F, the density and the probability of t: for a = -mean / scale, the integral of
// (t - a) f(t) from a on is f(a) (dof + a^2) / (dof - 1) - a (1 - F(a)).
double StudentGain(double mean, double scale, int64_t dof) {
  if (scale <= 0) return std::max(mean, 0.0);
  DSAT_CHECK(dof >= 2, "{}", dof);
  const auto n = static_cast<double>(dof);
  const double a = -mean / scale;
  const double density = std::exp(std::lgamma((n + 1) / 2) - std::lgamma(n / 2) -
                                  (n + 1) / 2 * std::log1p(a * a / n)) /
                         std::sqrt(n * std::numbers::pi);
  return scale * (density * (n + a * a) / (n - 1) - a * StudentProbability(-a, dof));
}

Center CenterOf(std::vector<double> values) {
  DSAT_CHECK(!values.empty(), "no values");
  constexpr double kDisturbed = 6;
  constexpr size_t kLeastToTrim = 9;
  std::ranges::sort(values);
  const double median = (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  std::vector<double> distances;
  for (const double value : values)
    distances.push_back(std::abs(value - median));
  std::ranges::sort(distances);
  size_t out = values.size() < kLeastToTrim ? 0 : values.size() / 6;
  size_t kept = values.size() - 2 * out;
  const double near = distances[kept - 1];
  if (near == 0 || distances.back() <= kDisturbed * near) {
    out = 0;
    kept = values.size();
  }
  Center center{.dof = static_cast<int64_t>(kept) - 1};
  double mean = 0;  // With those left out moved to the nearest value kept.
  for (size_t i = 0; i < values.size(); ++i) {
    if (i >= out && i < out + kept) center.mean += values[i] / static_cast<double>(kept);
    values[i] = std::clamp(values[i], values[out], values[out + kept - 1]);
    mean += values[i] / static_cast<double>(values.size());
  }
  if (kept == 1) return center;
  for (const double value : values)
    center.variance += (value - mean) * (value - mean) / static_cast<double>(kept * (kept - 1));
  return center;
}

}  // namespace dsat
