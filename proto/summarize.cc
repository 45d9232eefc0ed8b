// From single values to a metric.
#include "proto/summarize.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace dsat {
namespace {

double Quantile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

Metric Summarize(std::vector<double> values) {
  DSAT_CHECK(!values.empty());
  std::ranges::sort(values);
  return {.value = Quantile(values, 0.5),
          .spread = (Quantile(values, 0.75) - Quantile(values, 0.25)) / 2,
          .samples = static_cast<int64_t>(values.size())};
}

}  // namespace dsat
