// Quantiles of the distributions that confidence intervals need.
#ifndef DSAT_BASE_STATISTICS_H_
#define DSAT_BASE_STATISTICS_H_

#include <cstdint>

namespace dsat {

// The value that Student's t with `dof` degrees of freedom stays below with this probability.
// REQUIRES: 0 < probability < 1 and dof >= 1. The result is exact to about 1e-9 of itself.
double StudentQuantile(double probability, int64_t dof);

}  // namespace dsat

#endif  // DSAT_BASE_STATISTICS_H_
