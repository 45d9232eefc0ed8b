// Traces the steps that a task asks for, and writes the trace when they are done.
#pragma once

#include <cstdint>

#include "engine/comm/process_group.h"
#include "engine/core/trace.h"
#include "engine/runtime/engine.h"
#include "proto/trial_task.h"

namespace dsat::engine {

// REQUIRES: the tracer lives as long as the engine.
class StepTracer {
 public:
  // Nothing is traced if the task's path is "".
  explicit StepTracer(TraceTask task) : task_(std::move(task)) {}

  // The run makes the steps after `done_steps` up to `all_steps`. If those are fewer than the task
  // counts, the last of them are traced.
  void Plan(int64_t done_steps, int64_t all_steps);
  // To be called around each step. AfterStep is a collective call; on rank 0 it writes the file
  // after the last traced step, or at the end of the run if that comes first. An error of writing
  // is logged, and training continues.
  void BeforeStep(Engine& engine);
  void AfterStep(Engine& engine, ProcessGroup& group, bool run_ends);

 private:
  TraceTask task_;
  int64_t first_ = 0;  // As the engine counts; none if last_ is 0.
  int64_t last_ = 0;
  Trace trace_;
};

}  // namespace dsat::engine
