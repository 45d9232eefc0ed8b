// The section search_space of an experiment file: which values of which ds_config keys to search.
#ifndef DSAT_SEARCHER_INPUT_USER_SPACE_H_
#define DSAT_SEARCHER_INPUT_USER_SPACE_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "searcher/input/experiment_document.h"

namespace dsat {

// `section` with each entry as an array of values: a list as it is; {min, max, divisible_by} of the
// micro-batch size as all multiples between the bounds; {min, max} of another whole number as min,
// twice min, four times min ... and max. Warns of keys that are not in the table of keys. Throws
// kInvalidArgument naming the line for a key that is not searched (another flag sets it, it changes
// what is learned, or the built-in engine has no use for it), and for values that the key cannot
// have.
Json ReadUserSpace(const ExperimentDocument& document, const Json& section, bool builtin,
                   std::vector<std::string>* warnings);

}  // namespace dsat

#endif  // DSAT_SEARCHER_INPUT_USER_SPACE_H_
