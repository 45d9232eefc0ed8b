// From sizes and settings to a plan: a pure function, the same on every rank.
//
// Only homes (placement.h) decide what is moved: parameters that rest sharded are gathered around
// forward and backward; gradients that rest sharded are reduced after every micro-batch, partial
// ones after the last; replicated parameters of a sharded optimizer are gathered after the update.
// Bucket and fetch settings decide only how much one call carries and when it is issued.
#ifndef DSAT_ENGINE_PLAN_BUILD_PLAN_H_
#define DSAT_ENGINE_PLAN_BUILD_PLAN_H_

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"

namespace dsat::engine {

struct PlanUnit {
  int64_t num_elems = 0;      // Padded: a multiple of world_size * kAlignElems.
  int64_t largest_param = 0;  // Elements of its largest parameter.
  std::vector<int> borrows;   // Other units whose parameters it uses too (ties).
};

struct PlanOptions {
  StateHomes homes;
  int world_size = 1;
  int64_t accumulation_steps = 1;
  // Elements of one gradient reduction or parameter gather, over all rows. Rounded down to a
  // multiple of world_size * kAlignElems, but at least that. A unit larger than this takes several
  // calls.
  int64_t reduce_bucket_elems = 500'000'000;
  int64_t gather_bucket_elems = 500'000'000;
  bool share_reduce_buckets = true;  // Several units' gradients in one call.
  bool reduce_scatter = true;        // false: all-reduce, of which each rank keeps its slice.
  // Collectives run beside computing: two buckets of each kind instead of one.
  bool overlap = false;
  // Sharded units. One whose parameters all have at most this many elements rests replicated.
  int64_t persistent_param_elems = 0;
  // Look-ahead: gathered before their turn are at most so many elements, and only while what is
  // gathered in all is at most max_live_elems. Without overlap, look-ahead merges small gathers.
  int64_t prefetch_elems = 0;
  int64_t max_live_elems = 1'000'000'000;
};

// REQUIRES: at least one unit; sizes are padded; accumulation_steps > 0.
Plan BuildPlan(const std::vector<PlanUnit>& units, const PlanOptions& options);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_PLAN_BUILD_PLAN_H_
