// The configurations in which the profiling trial is tried, until one fits.
#ifndef DSAT_SEARCHER_SEARCH_PROFILE_LADDER_H_
#define DSAT_SEARCHER_SEARCH_PROFILE_LADDER_H_

#include <vector>

#include "proto/experiment.h"

namespace dsat {

// The ds_config as submitted, then with less and less device memory: at ZeRO stage 3, with
// activation checkpointing (of the built-in engine), and with parameters and optimizer states in
// host memory. With --compat determined only the first one.
std::vector<Json> ProfileLadder(const ExperimentSpec& spec);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SEARCH_PROFILE_LADDER_H_
