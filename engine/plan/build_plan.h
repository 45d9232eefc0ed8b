// Builds a plan from sizes and settings: a pure function with the same result on every rank of a
// data-parallel group.
//
// Only homes (placement.h) decide what is moved. Sharded parameters are gathered for forward and
// backward. Sharded gradients are reduced after every micro-batch, partial ones after the last.
// Replicated parameters of a sharded optimizer are gathered after the update. Bucket and fetch
// settings decide only how much one call carries and when it is issued.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/schedule.h"

namespace dsat::engine {

struct PlanUnit {
  int64_t num_elems = 0;      // Padded: a multiple of world_size * kAlignElems.
  int64_t largest_param = 0;  // Elements of its largest parameter.
  std::vector<int> borrows;   // Other units whose parameters it uses too (ties).
  bool frozen = false;        // Never updated: no gradients, no optimizer state.
};

// How much of the state that may be offloaded is offloaded, and how it is read and written.
struct OffloadOptions {
  double optimizer_ratio = 1;           // The part of all elements; the rest stays on the device.
  int64_t max_param_elems_in_host = 0;  // Elements that stay in host memory instead of on disk.
  int num_state_buffers = 1;            // Sub-groups from disk that are in host memory at once.
  bool pipeline_read = false;           // The next sub-groups are read while one is updated.
  bool pipeline_write = false;          // Sub-groups are written while the next are updated.
  int num_params_ahead = 0;             // Units that are read from disk before they are gathered.
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
  // Plan::bucket_row_elems of a plan with the same overlap, whose buckets the transfers have to
  // fit. Empty: there are buckets for this plan.
  std::vector<int64_t> given_bucket_row_elems = {};
  bool share_reduce_buckets = true;  // Several units' gradients in one call.
  bool reduce_scatter = true;        // false: an all-reduce, of which each rank keeps its slice.
  bool gather_updated = true;        // false: updated parameters are broadcast, slice by slice.
  // false: every rank's gradient stays its own, and momenta are averaged instead (1-bit Adam).
  bool reduce_grads = true;
  int64_t num_trust_ratios = 0;  // LAMB: one per parameter of the model.
  bool fold_grads = false;       // Gradients accumulate in another type than they come in.
  // Collectives run concurrently with computing, with two buckets of each kind instead of one.
  bool overlap = false;
  // A unit whose parameters all have at most this many elements is replicated instead of sharded,
  // as long as such units together have at most max_persistent_elems.
  int64_t persistent_param_elems = 0;
  int64_t max_persistent_elems = INT64_MAX;
  // At most this many elements are gathered ahead of their use, and only while at most
  // max_live_elems are gathered in all. Without overlap, this merges small gathers.
  int64_t prefetch_elems = 0;
  int64_t max_live_elems = 1'000'000'000;
  // A gathered unit is kept if it is used again before this many other elements are, and while at
  // most max_live_elems are gathered in all. What the next unit needs is always kept.
  int64_t max_reuse_elems = 0;
  int64_t sub_group_elems = 1'000'000'000;  // Elements that one optimizer call updates.
  OffloadOptions offload;
  int64_t checkpoint_interval = 0;  // As in ScheduleOptions.
  bool checkpoints_on_host = false;
  bool backward = true;  // false: evaluation, without a step.
  // Pipeline: stage s computes units [stage_begins[s], stage_begins[s + 1]). Empty: one stage.
  std::vector<int> stage_begins;
  int stage = 0;
};

// REQUIRES: at least one unit, and one that is not frozen; sizes are padded; accumulation_steps
// > 0.
Plan BuildPlan(const std::vector<PlanUnit>& units, const PlanOptions& options);

}  // namespace dsat::engine
