// The conditions of SearchSpace::where on the combinations of a stage's knobs.
#pragma once

#include <optional>

#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// Whether the submitted keys, with the settings of the place and `assignment` over them, satisfy
// space.where.
bool IsAllowed(const SearchSpace& space, const StageSpace& stage, const Assignment& assignment);

// `fixed` with as few other knobs changed as an allowed combination needs, everything else as
// submitted; nullopt if none is found among the first 100,000.
std::optional<Assignment> NearestAllowed(const SearchSpace& space, const StageSpace& stage,
                                         const Assignment& fixed = {});

}  // namespace dsat
