// The JSON Schema of the experiment file (experiment.schema.json), by which dsat reads it.
//
// A key that is "deprecated" has no effect. One with "reader": "ranks" is read by the ranks of a
// command (python/dsat/_determined). The definition ds_config lists the keys of the key table.
#pragma once

#include <string>

#include "base/json.h"

namespace dsat {

// The schema's text.
extern const char kExperimentSchema[];

// The schema of the key at a JSON pointer, "" for the whole file; nullptr if there is no such key.
const Json* FindExperimentKey(const std::string& pointer);

// Whether a value is what the keywords type (a list), minimum, maximum, minLength and enum of its
// schema say. If it is not, the schema's errorMessage says what is expected.
bool Fits(const Json& schema, const Json& value);

}  // namespace dsat
