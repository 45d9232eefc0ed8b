// The sections search_space and where of an experiment file: which values of which ds_config keys,
// arguments of the command and environment variables to search, under which conditions.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "searcher/input/document.h"

namespace dsat {

// Whether dsat sets the environment variable for ranks itself.
bool SetsItself(const std::string& name);

// `section` with each entry as an array of values under its JSON pointer in a trial's config, which
// for "arguments.--flag" and "environment.NAME" is that of proto/launch_settings.h: a list as it
// is; {min, max, divisible_by} of the micro-batch size as all multiples between the bounds;
// {min, max} of another whole number as min, twice min, four times min ... and max. Warns of keys
// that are not in the table of keys. Throws kInvalidArgument naming the line for a key that is not
// searched (another flag sets it, it changes what is learned, or the built-in engine has no use for
// it), and for values that the key cannot have.
Json ReadUserSpace(const ExperimentDocument& document, const Json& section,
                   const ExperimentSpec& spec, std::vector<std::string>* warnings);

// Adds what the submitted command already says of the arguments and variables that
// spec.search_space names to spec.ds_config, so that equal values count as unchanged.
void AddSubmittedValues(ExperimentSpec& spec);

// Removes the lists from `ds_config` that it has in place of one value, as in a config for
// DeepSpeed's own autotuner, and returns them as a section search_space: pointer -> list. The
// config keeps the first value of each. Throws kInvalidArgument naming `source` for a list of ZeRO
// stages.
Json TakeLists(const std::string& source, Json& ds_config);

// Returns the conditions of the section where, a list of texts (proto/comparison.h). Warns if the
// submitted ds_config breaks one. Throws kInvalidArgument naming the line and the condition if it
// is no comparison, if a key has no value or is set by a flag, if no key of it is searched, if its
// values cannot be compared, or if no values meet it. REQUIRES: spec.search_space is set.
std::vector<std::string> ReadWhere(const ExperimentDocument& document, const Json& section,
                                   const ExperimentSpec& spec, std::vector<std::string>* warnings);

}  // namespace dsat
