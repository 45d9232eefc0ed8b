// From single values to a metric.
#ifndef DSAT_PROTO_SUMMARIZE_H_
#define DSAT_PROTO_SUMMARIZE_H_

#include <vector>

#include "proto/trial.h"

namespace dsat {

// Median, and half the interquartile range (quartiles interpolated between adjacent values).
// REQUIRES: values is not empty.
Metric Summarize(std::vector<double> values);

}  // namespace dsat

#endif  // DSAT_PROTO_SUMMARIZE_H_
