// Makes the search space: the stages, their knobs, and the sizes to start with.
#ifndef DSAT_PROFILER_TUNING_SPACE_H_
#define DSAT_PROFILER_TUNING_SPACE_H_

#include <cstdint>

#include "engine/config/keys.h"
#include "profiler/predictor.h"
#include "proto/experiment.h"

namespace dsat {

// One StageSpace for each of options.zero_stages, in that order, with the sizes that `predictor`
// gives for it; they are 0 for a stage that the engine refuses. Knobs are the searched rows of
// `keys` in the order of the table, from their stages on, with their values. Knobs without effect
// are left out: those that need several ranks if there is one, and sizes beyond the smallest that
// holds every parameter. With compat_determined the published knobs are kept with all their values.
// `user_space` (ExperimentSpec::search_space) gives keys other values, adds keys, and limits the
// micro-batch sizes. Every stage has forecasts at micro-batch sizes 1, 2, 4, ... up to twice the
// largest that fits.
// REQUIRES: ValidateOptions(options) passes.
SearchSpace MakeSearchSpace(const Predictor& predictor, const ModelProfile& profile,
                            const Json& ds_config, const SearchOptions& options, int64_t world_size,
                            const Json& user_space = Json::object(),
                            const engine::KeyTable& keys = engine::Keys());

}  // namespace dsat

#endif  // DSAT_PROFILER_TUNING_SPACE_H_
