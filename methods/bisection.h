// Bisection within a lineage for the largest micro-batch size that fits, shared by asha and binary.
#ifndef DSAT_METHODS_BISECTION_H_
#define DSAT_METHODS_BISECTION_H_

#include <optional>

#include "methods/lineage.h"

namespace dsat {

// The first step of a lineage: the middle of 1 and its stage's approximate maximum times
// search_range_factor, but not more than its ceiling.
Step FirstBisectionStep(const LineageTable& table, const Lineage& lineage);

// The step after the lineage's latest trial; nullopt if the search is over because no size remains
// between the largest that fits and the smallest that does not, or because the latest trial gave no
// evidence. If the upper end of the range fits, the next step is twice as large if no size was too
// large, the latest trial was the lineage's best, and the ceiling allows it
// (SearchPolicy::bisect_beyond_range).
// REQUIRES: the lineage is idle and has a trial.
std::optional<Step> NextBisectionStep(const LineageTable& table, const Lineage& lineage);

}  // namespace dsat

#endif  // DSAT_METHODS_BISECTION_H_
