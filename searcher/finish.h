// Ends an experiment whose search has finished.
#ifndef DSAT_SEARCHER_FINISH_H_
#define DSAT_SEARCHER_FINISH_H_

#include "searcher/experiment.h"

namespace dsat {

// Marks an active experiment as completed, or as failed with the reason, if its search has
// finished. Called after every tell by the runner, the service and `dsat tell`. Returns true if the
// search has finished. Throws as Experiment::SetState.
bool FinishIfDone(Experiment& experiment);

}  // namespace dsat

#endif  // DSAT_SEARCHER_FINISH_H_
