// Updates the row tables from the events of the log.
#pragma once

#include <cstdint>
#include <vector>

#include "db/event.h"
#include "db/sqlite.h"
#include "proto/trial.h"

namespace dsat {

// Updates experiments, trials, attempts and points by `event`. Throws kInvalidArgument if the event
// contradicts the tables (a trial that was already asked for, an attempt that was not started).
// REQUIRES: a transaction is open.
void Project(const Database& db, ExperimentId experiment, const Event& event);

// Trials of an experiment from the row tables, by id, with the points of their last attempts.
// Throws kInvalidArgument or Json::exception if Project cannot have written a row.
std::vector<Trial> ReadTrials(const Database& db, ExperimentId experiment);

}  // namespace dsat
