// Says in words what a trial, a measurement and a profile are, for every command that shows them.
#ifndef DSAT_CLI_OUTPUT_DESCRIBE_H_
#define DSAT_CLI_OUTPUT_DESCRIBE_H_

#include <string>

#include "proto/trial.h"
#include "searcher/search/search.h"

namespace dsat::cli {

// "stage 2, micro-batch 16": a trial's config at its best point by `metric`.
std::string DescribeConfig(const Trial& trial, const std::string& metric);
// Says what a trial tries: its config, or "profile", "as submitted", "confirms trial 3", ...
std::string DescribeTrial(const Trial& trial, const std::string& metric);
// "132.1 samples/s", "41.2 GFLOP/s", "35.0 ms", "0.25 ms", "310.0 MiB": a metric's value
// with its unit.
std::string DescribeMetric(const std::string& metric, double value);
// The profile of the model and the device and, for each stage, the predicted memory and
// micro-batch. REQUIRES: search.profile().
std::string DescribeProfile(const Search& search);
// How much of the space is left out, as a line of its own; "" if nothing is. REQUIRES: as above.
std::string DescribeLeftOut(const Search& search);

}  // namespace dsat::cli

#endif  // DSAT_CLI_OUTPUT_DESCRIBE_H_
