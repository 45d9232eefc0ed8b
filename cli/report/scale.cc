// Axes and their ticks.
#include "cli/report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dsat::cli {
namespace {

// The smallest of 1, 2 or 5 times a power of ten that is at least `least`.
double RoundStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// With as many decimals as `step` needs.
std::string TickLabel(double value, double step) {
  if (std::abs(value) >= 1e6 || step < 1e-4) return fmt::format("{:.3g}", value);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

bool IsDrawable(double value) {
  return std::isfinite(value) && std::abs(value) < 1e100;
}

Scale::Scale(double low, double high, bool is_log) : low_(low), high_(high), is_log_(is_log) {
  if (!IsDrawable(low_) || !IsDrawable(high_) || low_ > high_ || (is_log_ && low_ <= 0))
    low_ = high_ = 1;
  const double least = 1e-9 * std::max(std::abs(low_), std::abs(high_));
  if (high_ - low_ > least) return;
  const double half = low_ == 0 ? 1 : std::abs(low_) / (is_log_ ? 3 : 10);
  low_ -= half;
  high_ += half;
}

void Scale::Pad(double part) {
  if (is_log_) {
    const double factor = std::pow(high_ / low_, part);
    low_ /= factor;
    high_ *= factor;
  } else {
    const double extent = high_ - low_;
    // Numbers that are not negative get no negative ticks.
    low_ = low_ < 0 ? low_ - part * extent : std::max(low_ - part * extent, 0.0);
    high_ += part * extent;
  }
}

void Scale::RoundOut(int count) {
  if (is_log_) return;
  step_ = RoundStep((high_ - low_) / count);
  low_ = std::floor(low_ / step_ + 1e-9) * step_;
  high_ = std::ceil(high_ / step_ - 1e-9) * step_;
}

double Scale::At(double value) const {
  double at = (value - low_) / (high_ - low_);
  if (is_log_) at = value <= 0 ? -1 : std::log(value / low_) / std::log(high_ / low_);
  return std::clamp(at, -1.0, 2.0);
}

std::vector<Scale::Tick> Scale::Ticks(int count, double least_step) const {
  std::vector<Tick> ticks;
  if (is_log_) {
    const int first = static_cast<int>(std::ceil(std::log2(low_) - 1e-9));
    const int last = static_cast<int>(std::floor(std::log2(high_) + 1e-9));
    const int step = std::max(1, (last - first + count - 1) / count);
    for (int exponent = first; exponent <= last; exponent += step) {
      const double value = std::exp2(exponent);
      ticks.push_back({value, fmt::format("{:.4g}", value)});
    }
  } else {
    const double step = step_ > 0 ? step_ : RoundStep(std::max((high_ - low_) / count, least_step));
    const double first = std::ceil(low_ / step - 1e-9);
    for (int i = 0; i <= 2 * count; ++i) {
      const double value = (first + i) * step;
      if (value > high_ + 1e-9 * step) break;
      ticks.push_back({value, TickLabel(value, step)});
    }
  }
  if (ticks.empty()) ticks.push_back({low_, TickLabel(low_, high_ - low_)});
  return ticks;
}

}  // namespace dsat::cli
