// Functions of the standard normal distribution.
#pragma once

#include <cmath>
#include <numbers>

namespace dsat {

inline double NormalPdf(double z) {
  return std::exp(-0.5 * z * z) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}

inline double NormalCdf(double z) {
  return 0.5 * std::erfc(-z / std::numbers::sqrt2);
}

// NormalPdf(z) / NormalCdf(z), also where both are too small to divide.
inline double NormalHazard(double z) {
  return z < -30 ? -z : NormalPdf(z) / NormalCdf(z);
}

// The expected value of max(x, 0) for a normal x.
inline double ExpectedGain(double mean, double sd) {
  if (sd <= 0) return mean > 0 ? mean : 0;
  const double z = mean / sd;
  return mean * NormalCdf(z) + sd * NormalPdf(z);
}

}  // namespace dsat
