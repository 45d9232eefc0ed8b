// Applies the conditions of an experiment (its section `where`) to a search space.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/comparison.h"
#include "proto/experiment.h"

namespace dsat {

// All values that some configuration can have at a pointer; null, or an empty list, if it has none.
using PossibleValues = std::function<std::vector<Json>(const std::string& pointer)>;

// Why no choice of these values satisfies all conditions: names one condition that cannot hold, or
// those that cannot hold together. "" if there is such a choice.
std::string WhyExcluded(const std::vector<Comparison>& where, const PossibleValues& values_of);

// As the conditions of spec.where. REQUIRES: each is one.
std::vector<Comparison> ConditionsOf(const ExperimentSpec& spec);

// Throws kInvalidArgument: the conditions of spec.where leave nothing to search.
[[noreturn]] void ThrowNothingLeft(const ExperimentSpec& spec);

}  // namespace dsat
