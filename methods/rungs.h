// The rungs of asha, as questions about a table of lineages.
//
// Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter
// Tuning", 2018) with the number of trials in a lineage as the resource, as in Determined's
// DeepSpeed Autotune.
#ifndef DSAT_METHODS_RUNGS_H_
#define DSAT_METHODS_RUNGS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "methods/lineage.h"

namespace dsat {

// Completed trials that complete a rung: min_binary_search_trials * divisor^(asha_early_stopping +
// rung), at most INT64_MAX.
int64_t TrialsToComplete(const SearchOptions& options, int64_t rung);

// True if the lineage has that many, has gone beyond the rung, or is in it and has nothing left to
// bisect.
bool CompletedRung(const LineageTable& table, const Lineage& lineage, int64_t rung);

// The best 1/divisor of the lineages that completed the rung (rounded down), best first; ranked by
// their trials in rungs up to this one, equals by number. Lineages without a measurement count but
// are never among them.
std::vector<const Lineage*> TopLineages(const LineageTable& table, int64_t rung);

// What to run next for asha: a lineage, its step, the rung it will run in.
struct RungStep {
  int64_t lineage = 0;
  Step step;
  int64_t rung = 0;
};

// The promotion out of the highest rung that has one: the best of its top lineages that is still in
// it. One with nothing left to bisect is passed over; with compat_determined it blocks every other
// promotion instead.
std::optional<RungStep> NextPromotion(const LineageTable& table);

// The continuation of a lineage that has not completed its rung: highest rung first, then most
// completed trials, then the oldest lineage.
std::optional<RungStep> NextContinuation(const LineageTable& table);

}  // namespace dsat

#endif  // DSAT_METHODS_RUNGS_H_
