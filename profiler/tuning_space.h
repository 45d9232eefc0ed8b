// The space that is searched: stages, their knobs, and where to start.
#ifndef DSAT_PROFILER_TUNING_SPACE_H_
#define DSAT_PROFILER_TUNING_SPACE_H_

#include <cstdint>

#include "profiler/predictor.h"
#include "proto/experiment.h"

namespace dsat {

// One StageSpace for each of options.zero_stages, in that order; sizes from `predictor`, 0 of a
// stage that the engine refuses. Knobs: reduce_bucket_size and allgather_bucket_size
// in {1, 5} x {10^6 ... 10^9} elements; from stage 2 on overlap_comm, reduce_scatter and
// contiguous_gradients, on or off.
// Left out is what has no effect: all of them on one rank, allgather_bucket_size at stage 0, bucket
// sizes beyond the smallest that holds every parameter. With compat_determined all are kept, and
// stage 3 has allgather_partitions too. REQUIRES: ValidateOptions(options) passes.
SearchSpace MakeSearchSpace(const Predictor& predictor, const ModelProfile& profile,
                            const Json& ds_config, const SearchOptions& options,
                            int64_t world_size);

}  // namespace dsat

#endif  // DSAT_PROFILER_TUNING_SPACE_H_
