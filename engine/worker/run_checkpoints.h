// The checkpoints of one run, of which it keeps the newest.
#ifndef DSAT_ENGINE_WORKER_RUN_CHECKPOINTS_H_
#define DSAT_ENGINE_WORKER_RUN_CHECKPOINTS_H_

#include <chrono>
#include <string>

#include "engine/runtime/engine.h"
#include "engine/worker/reporter.h"
#include "engine/worker/step_history.h"
#include "proto/trial_task.h"

namespace dsat::engine {

class RunCheckpoints {
 public:
  // `task` and `reporter` must outlive this. The time until the first one is late counts from here.
  RunCheckpoints(const TrialTask& task, int rank, Reporter& reporter)
      : task_(task), rank_(rank), reporter_(reporter) {}

  // Replaces the checkpoint that this run has saved before, once `history`, if there is one, is on
  // disk as well. Does nothing if the task names no folder. A collective call; throws as
  // Engine::SaveCheckpoint.
  void Save(Engine& engine, const StepResult& step, StepHistory* history);
  // Whether task.checkpoint_seconds have passed since the last one, by the clock of rank 0; false
  // on the others.
  bool IsLate() const;

 private:
  const TrialTask& task_;
  const int rank_;
  Reporter& reporter_;
  std::string saved_tag_;  // Of the newest one.
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_WORKER_RUN_CHECKPOINTS_H_
