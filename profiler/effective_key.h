// When are two configurations the same? If they differ only in keys that cannot matter here.
#ifndef DSAT_PROFILER_EFFECTIVE_KEY_H_
#define DSAT_PROFILER_EFFECTIVE_KEY_H_

#include <cstdint>
#include <string>

#include "base/json.h"

namespace dsat {

// A text that is equal for two resolved configurations (engine::ConfigForTrial) if and only if they
// run alike: defaults of zero_optimization filled in, the order of keys and the spelling of numbers
// (500000000, 5e8) immaterial, and folded away
//   - communication keys, on one rank
//   - allgather_partitions always, allgather_bucket_size at stage 0, stage-3 keys below stage 3
//   - by how much a size in elements exceeds `num_params` (if that is not 0)
std::string EffectiveKey(const Json& ds_config, int64_t world_size, int64_t num_params);

}  // namespace dsat

#endif  // DSAT_PROFILER_EFFECTIVE_KEY_H_
