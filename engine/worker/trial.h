// One rank of a built-in trial: profile, measure or train, as its task says.
#pragma once

#include "engine/runtime/rank_environment.h"
#include "engine/worker/reporter.h"
#include "proto/trial_task.h"

namespace dsat::engine {

// Runs the task to its end and returns the exit code: kExitOk, or kExitInfeasible after reporting
// why this configuration cannot run here. Throws Error on all other failures.
int RunTrial(const TrialTask& task, const RankEnvironment& environment, Reporter& reporter);

}  // namespace dsat::engine
