// Finds the earlier experiment from which a new search starts (--warm-start).
#pragma once

#include "base/json.h"
#include "db/store.h"
#include "proto/experiment.h"

namespace dsat {

// The options.prior that `spec`, with a warm_start other than "off", is to have: the measurements
// of another experiment of the store (EarlierSearch, methods/warm_start.h). With "auto" that is the
// newest one on the same machine (spec.machine is equal except for the name of the machine, and is
// known), with the same kind of device and ranks; one with the same entrypoint and hyperparameters
// is preferred. Null if there is none. Throws kNotFound if the named experiment does not exist,
// kFailedPrecondition if it has measured nothing.
Json FindPrior(const Store& store, const ExperimentSpec& spec);

}  // namespace dsat
