// Records the steps of a training that a task asks for.
#include "engine/worker/step_tracer.h"

#include <algorithm>

#include "base/files.h"
#include "base/log.h"
#include "engine/runtime/write_trace.h"

namespace dsat::engine {

void StepTracer::Plan(int64_t done_steps, int64_t all_steps) {
  if (task_.path.empty()) return;
  last_ = std::min(done_steps + task_.last_step, all_steps);
  first_ = std::max(done_steps + 1, last_ - (task_.last_step - task_.first_step));
}

void StepTracer::BeforeStep(Engine& engine) {
  if (last_ > 0 && engine.num_steps() + 1 == first_) engine.set_trace(&trace_);
}

void StepTracer::AfterStep(Engine& engine, ProcessGroup& group, bool run_ends) {
  const int64_t step = engine.num_steps();
  if (step < first_ || step > last_ || (step < last_ && !run_ends)) return;
  engine.set_trace(nullptr);
  const std::string text = GatherTraces(trace_, group);
  if (group.rank() != 0) return;
  try {
    WriteFileAtomic(task_.path, text);
    Log(LogLevel::kInfo, "trace",
        {{"file", task_.path}, {"first_step", first_}, {"last_step", step}});
  } catch (const Error& error) {
    Log(LogLevel::kWarn, "no trace", {{"error", error.what()}});
  }
}

}  // namespace dsat::engine
