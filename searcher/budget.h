// Says when a search ends early: its budget is used, or the submitted configuration always fails.
#pragma once

#include <optional>
#include <string>

#include "searcher/search/experiment.h"

namespace dsat {

// The time that a search has used so far.
struct Spent {
  double clock_s = 0;       // Seconds that it has run.
  double slot_seconds = 0;  // Slots times the time that trials ran.
};

// The reason why the method must not be asked for more trials: a budget of the options is used but
// for what the confirmation needs up to its first look, or the submitted configuration has failed
// in every launch, at least twice, with the same reason. nullopt if the search may continue.
std::optional<std::string> WhySearchIsOver(const Experiment& experiment, const Spent& spent);

}  // namespace dsat
