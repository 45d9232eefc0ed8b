// Results as text and as JSON, shared by the commands that print them.
#ifndef DSAT_CLI_OUTPUT_H_
#define DSAT_CLI_OUTPUT_H_

#include <string>

#include "base/json.h"
#include "searcher/experiment.h"

namespace dsat::cli {

// The ranking of all trials, the profile's facts and the factor over the submitted configuration.
// Settings wrap at `columns` of a terminal; 0: one line per trial, however long.
std::string SummaryText(const Experiment& experiment, size_t columns);
// The same for machines.
Json SummaryJson(const Experiment& experiment, const std::string& out_dir);
// One trial for machines: id, kind, state, reason, assignment, ds_config, and the metrics of its
// best point by `metric`.
Json TrialJson(const Trial& trial, const std::string& metric);

}  // namespace dsat::cli

#endif  // DSAT_CLI_OUTPUT_H_
