// The last entry of an experiment's log.
#ifndef DSAT_SEARCHER_FINISH_H_
#define DSAT_SEARCHER_FINISH_H_

#include "searcher/experiment.h"

namespace dsat {

// Marks an active experiment as completed, or as failed with the reason, once its search has
// finished. For everyone who tells: runner, service, `dsat tell`. True if the search has finished.
// Throws as Experiment::SetState.
bool FinishIfDone(Experiment& experiment);

}  // namespace dsat

#endif  // DSAT_SEARCHER_FINISH_H_
