// The row tables as they follow from the log: one event in, a few SQL statements out.
#ifndef DSAT_DB_PROJECTIONS_H_
#define DSAT_DB_PROJECTIONS_H_

#include <cstdint>
#include <vector>

#include "db/event.h"
#include "db/sqlite.h"
#include "proto/trial.h"

namespace dsat {

// Brings experiments, trials, attempts and points up to date with `event`. Throws kInvalidArgument
// if the event cannot follow what the tables hold (a trial asked for twice, an attempt that was
// never started). REQUIRES: a transaction is open.
void Project(const Database& db, ExperimentId experiment, const Event& event);

// Trials of an experiment from the row tables, by id, with the points of their last attempts.
std::vector<Trial> ReadTrials(const Database& db, ExperimentId experiment);

}  // namespace dsat

#endif  // DSAT_DB_PROJECTIONS_H_
