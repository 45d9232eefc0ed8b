// The choices in which Determined's published search methods differ from dsat's (docs/methods.md).
//
// Code asks the policy for the choice by its name. Only the code that reads, stores and checks
// options knows compat_determined (tests/tidy_test.cc).
#pragma once

#include "proto/experiment.h"

namespace dsat {

struct SearchPolicy {
  bool published = false;  // As published by Determined.
  // A trial without a measurement counts as too large, even if it failed or was stopped.
  bool failure_is_too_large = published;
  // asha, binary: a bisection whose upper end fits continues with larger sizes.
  bool bisect_beyond_range = !published;
  // asha: the best lineage of a rung blocks all promotions if its bisection is over.
  bool exhausted_lineage_blocks_promotion = published;
  // random: once stage 1 or 2 has succeeded, only those that have are drawn, and lineages of stage
  // 3 stop.
  bool prune_stages = published;
  // random: sizes are drawn above the best size of the stage and not around it.
  bool draw_above_best = published;
  // The submitted configuration is the first trial after the profiling trial.
  bool try_submitted = !published;
  // The profiling trial runs as many micro-batches as the submitted configuration, not one.
  bool profile_all_micro_batches = published;
  // Every proposal is a trial, also if an equal configuration has run.
  bool repeat_equal = published;
  // Every proposal is launched, also if it is predicted not to fit, and memory follows the
  // published formula.
  bool published_memory = published;
  // The space keeps the published knobs with all their values, also where they have no effect.
  bool published_space = published;
  // A trial measures exactly the profiled steps, and not until the error is small.
  bool fixed_window = published;
  // FLOPS_per_gpu is what each trial reports, with its own FLOPs per sample.
  bool reported_flops = published;
  // The global batch follows the micro-batch size and cannot be fixed.
  bool free_batch = published;
};

// The policy of a search.
inline SearchPolicy PolicyOf(const SearchOptions& options) {
  return {.published = options.compat_determined};
}

}  // namespace dsat
