// Checks that an experiment can run here, before anything is recorded or launched.
#pragma once

#include <string>
#include <vector>

#include "proto/experiment.h"

namespace dsat {

// Throws an Error naming the file, the key and the value if the entrypoint, the model, the data or
// the built-in engine's ds_config cannot work; a command's has passed CheckCommandConfig. Returns
// one-line warnings, as of keys without effect here. If `elsewhere`, trials run on other hosts,
// whose GPUs and disks are not checked; the model and the data are assumed to be the same there.
std::vector<std::string> CheckSpec(const ExperimentSpec& spec, bool elsewhere = false);

// Returns a warning for each stage of spec.options.zero_stages at which this ds_config is not
// legal, with the violated rule. Throws kInvalidArgument with that rule if no stage is legal, and
// naming the conditions of spec.where if they leave nothing to search.
std::vector<std::string> CheckStages(const ExperimentSpec& spec);

}  // namespace dsat
