// One rank of a built-in trial: profile, measure or train, as its task says.
#ifndef DSAT_ENGINE_TRIAL_TRIAL_H_
#define DSAT_ENGINE_TRIAL_TRIAL_H_

#include <string>

#include "engine/comm/process_group.h"
#include "engine/trial/reporter.h"
#include "proto/trial_task.h"

namespace dsat::engine {

// What the environment says.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int num_threads = 1;
  int group_fd = -1;  // -1: none was given, which only a single rank may be.
  std::string token;
};

// Runs the task to its end. Gives the exit code: kExitOk, or kExitInfeasible after reporting why
// this configuration cannot run here. Throws Error for all else.
int RunTrial(const TrialTask& task, const RankEnvironment& environment, Reporter& reporter);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_TRIAL_TRIAL_H_
