// Makes the search space: the places, their knobs, and the sizes to start with.
#pragma once

#include "engine/config/keys.h"
#include "profiler/predictor.h"
#include "proto/experiment.h"

namespace dsat {

// One StageSpace for each place (profiler/places.h), with the sizes that `predictor` gives for it;
// they are 0 for a stage that the engine refuses. Knobs are the searched rows of `keys` in the
// order of the table, from their stages on, with their values; a wide search (spec.options.space)
// has more of them, with the effects that are predicted. Knobs without effect are left out: those
// that need several ranks if there is one, sizes beyond the smallest that holds every parameter,
// and those that change no exact prediction. With --compat determined the published knobs are kept
// with all their values. spec.search_space gives keys other values, adds keys, and limits the
// micro-batch sizes. Every place has forecasts at micro-batch sizes 1, 2, 4, ... up to twice the
// largest that fits. REQUIRES: ValidateOptions(spec.options) passes.
SearchSpace MakeSearchSpace(const Predictor& predictor, const ModelProfile& profile,
                            const ExperimentSpec& spec,
                            const engine::KeyTable& keys = engine::Keys());

}  // namespace dsat
