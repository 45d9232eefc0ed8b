// The rungs of asha: which lineages have completed a rung, are promoted or continue.
//
// Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter
// Tuning", 2018) with the number of trials in a lineage as the resource, as in Determined's
// DeepSpeed Autotune.
#ifndef DSAT_METHODS_RUNGS_H_
#define DSAT_METHODS_RUNGS_H_

#include <cstdint>
#include <optional>

#include "methods/lineage.h"

namespace dsat {

// The number of completed trials that complete a rung: min_binary_search_trials *
// divisor^(asha_early_stopping + rung), at most INT64_MAX.
int64_t TrialsToComplete(const SearchOptions& options, int64_t rung);

// True if the lineage has that many completed trials, is beyond the rung, or is in it and its
// bisection is over.
bool CompletedRung(const LineageTable& table, const Lineage& lineage, int64_t rung);

// The next trial of asha: a lineage, its step and its rung.
struct RungStep {
  int64_t lineage = 0;
  Step step;
  int64_t rung = 0;
};

// The promotion from the highest rung that has one: the best of its top lineages that is still in
// it. The top are the best 1/divisor (rounded down) of the lineages that have completed the rung,
// ranked by their trials in rungs up to this one; ties by number. Lineages without a measurement
// count but are never at the top. A lineage whose bisection is over is skipped, or blocks all
// promotions (SearchPolicy::exhausted_lineage_blocks_promotion).
std::optional<RungStep> NextPromotion(const LineageTable& table);

// The continuation of a lineage that has not completed its rung: highest rung first, then most
// completed trials, then the oldest lineage.
std::optional<RungStep> NextContinuation(const LineageTable& table);

}  // namespace dsat

#endif  // DSAT_METHODS_RUNGS_H_
