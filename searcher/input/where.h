// The section where of an experiment file: conditions that every configuration of a search meets.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "searcher/input/document.h"

namespace dsat {

// The conditions of `section`, a list of texts (proto/comparison.h). Warns if the submitted
// ds_config breaks one. Throws kInvalidArgument naming the line and the condition if it is no
// comparison, if a key has no value or is set by a flag, if no key of it is searched, if its values
// cannot be compared, or if no values meet it. REQUIRES: spec.search_space is set.
std::vector<std::string> ReadWhere(const ExperimentDocument& document, const Json& section,
                                   const ExperimentSpec& spec, std::vector<std::string>* warnings);

}  // namespace dsat
