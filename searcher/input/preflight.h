// Whether an experiment can start here at all, asked before anything is recorded or launched.
#ifndef DSAT_SEARCHER_INPUT_PREFLIGHT_H_
#define DSAT_SEARCHER_INPUT_PREFLIGHT_H_

#include <string>
#include <vector>

#include "proto/experiment.h"

namespace dsat {

// Throws an Error naming file, key and value if the entrypoint, the model, the data or the
// submitted ds_config cannot work. Gives warnings, one line each: keys without effect here.
// `elsewhere`: trials run on other hosts, whose GPUs and disks are not looked at; the model and the
// data are taken to be the same there.
std::vector<std::string> CheckSpec(const ExperimentSpec& spec, bool elsewhere = false);

// A search over stages that this ds_config is not legal at finds nothing: gives a warning for each
// such stage of spec.options.zero_stages, with the rule that it breaks. Throws kInvalidArgument
// with that rule if none is left.
std::vector<std::string> CheckStages(const ExperimentSpec& spec);

}  // namespace dsat

#endif  // DSAT_SEARCHER_INPUT_PREFLIGHT_H_
