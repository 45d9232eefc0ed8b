// Refuses a spec that contradicts itself, and a success without a result.
#ifndef DSAT_SEARCHER_SEARCH_SEARCH_RULES_H_
#define DSAT_SEARCHER_SEARCH_SEARCH_RULES_H_

#include <string>

#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// Throws kInvalidArgument as Search's constructor.
void CheckSearchSpec(const ExperimentSpec& spec);

// The outcome that is recorded for a trial: a success without the searched metric, or without a
// model profile if it is the profiling trial, is a failure.
Outcome CheckedOutcome(const Trial& trial, const Outcome& outcome, const std::string& metric);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SEARCH_SEARCH_RULES_H_
