// Ends an experiment whose search has finished.
#include "searcher/finish.h"

#include <string>

namespace dsat {

bool FinishIfDone(Experiment& experiment) {
  const bool finished = experiment.search().Finished();
  if (finished && experiment.state() == ExperimentState::kActive) {
    const std::string failure = experiment.search().FailureReason();
    experiment.SetState(failure.empty() ? ExperimentState::kCompleted : ExperimentState::kFailed,
                        failure);
  }
  return finished || experiment.state() != ExperimentState::kActive;
}

}  // namespace dsat
