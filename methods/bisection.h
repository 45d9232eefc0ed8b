// Bisection on the micro-batch size within a lineage, shared by asha and binary: towards the
// largest size that fits.
#ifndef DSAT_METHODS_BISECTION_H_
#define DSAT_METHODS_BISECTION_H_

#include <optional>

#include "methods/lineage.h"

namespace dsat {

// The first step of a lineage at this stage: the middle of 1 and the approximate maximum, stretched
// by search_range_factor.
Step FirstBisectionStep(const StageSpace& stage, const SearchOptions& options);

// The step after the lineage's latest trial, nullopt if the search is over: nothing is left between
// the largest size that fits and the smallest that does not, or the latest trial gave no evidence.
// If the top of the range itself fits, the next step is twice as large, as long as nothing was too
// large and the latest trial was the lineage's best; with compat_determined the search ends there.
// REQUIRES: the lineage is idle and has a trial.
std::optional<Step> NextBisectionStep(const LineageTable& table, const Lineage& lineage);

}  // namespace dsat

#endif  // DSAT_METHODS_BISECTION_H_
