// The statistics that confidence intervals need.
#pragma once

#include <cstdint>
#include <vector>

namespace dsat {

// The value that Student's t with `dof` degrees of freedom stays below with this probability.
// REQUIRES: 0 < probability < 1 and dof >= 1. The result is exact to about 1e-9 of itself.
double StudentQuantile(double probability, int64_t dof);
// The probability that Student's t with `dof` degrees of freedom stays below `value`. REQUIRES: dof
// >= 1.
double StudentProbability(double value, int64_t dof);
// The expectation of max(mean + scale * t, 0), where t is Student's with `dof` degrees of freedom.
// REQUIRES: dof >= 2 and scale >= 0.
double StudentGain(double mean, double scale, int64_t dof);

// The mean of repeated measurements and its error. If, of nine values or more, the one farthest
// from the median is more than six times as far as the nearest two thirds, it was disturbed, and
// the smallest and the largest sixth (rounded down) are left out (Tukey and McLaughlin 1963, "Less
// Vulnerable Confidence and Significance Procedures for Location Based on a Single Sample"). At
// most 1.2 % of sets of values with normal noise look disturbed.
struct Center {
  double mean = 0;
  double variance = 0;  // The variance of the mean.
  int64_t dof = 0;      // Degrees of freedom of the variance; 0 for a single value.
};
// REQUIRES: there are values.
Center CenterOf(std::vector<double> values);

}  // namespace dsat
