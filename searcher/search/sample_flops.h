// FLOPs per sample as one number of an experiment, so that comparing trials by FLOPS_per_gpu
// compares their speeds, whatever FLOPs each of them counts.
#pragma once

#include <optional>

#include "proto/trial.h"

namespace dsat {

// FLOPs per sample of the whole batch, forward and backward, divided by the ranks: FLOPS_per_gpu /
// throughput. nullopt if one of them was not measured or is 0.
std::optional<double> RankFlopsPerSample(const Measurement& measurement);

// The measurement with FLOPS_per_gpu = throughput x `rank_flops_per_sample`, and MFU in proportion.
// Unchanged if it lacks one of the two.
Measurement WithFlopsPerSample(Measurement measurement, double rank_flops_per_sample);

}  // namespace dsat
