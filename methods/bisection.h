// Bisection within a lineage for the largest micro-batch size that fits, shared by asha and binary.
#ifndef DSAT_METHODS_BISECTION_H_
#define DSAT_METHODS_BISECTION_H_

#include <optional>

#include "methods/lineage.h"

namespace dsat {

// The first step of a lineage at this stage: the middle of 1 and the approximate maximum times
// search_range_factor.
Step FirstBisectionStep(const StageSpace& stage, const SearchOptions& options);

// The step after the lineage's latest trial; nullopt if the search is over because no size remains
// between the largest that fits and the smallest that does not, or because the latest trial gave no
// evidence. If the upper end of the range fits, the next step is twice as large if no size was too
// large and the latest trial was the lineage's best (SearchPolicy::bisect_beyond_range).
// REQUIRES: the lineage is idle and has a trial.
std::optional<Step> NextBisectionStep(const LineageTable& table, const Lineage& lineage);

}  // namespace dsat

#endif  // DSAT_METHODS_BISECTION_H_
