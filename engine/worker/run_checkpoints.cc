// The checkpoints of one run.
#include "engine/worker/run_checkpoints.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

namespace dsat::engine {

void RunCheckpoints::Save(Engine& engine, const StepResult& step, StepHistory* history) {
  if (task_.checkpoint_dir.empty()) return;
  reporter_.Progress(engine.num_steps(), step.latency_ms, step.loss, "saving");
  const Reporter::LongWork saving(reporter_);
  if (history != nullptr) history->Sync();
  const std::string tag = fmt::format("global_step{}", engine.num_steps());
  engine.SaveCheckpoint(task_.checkpoint_dir, tag);
  saved_ = std::chrono::steady_clock::now();
  const std::string before = std::exchange(saved_tag_, tag);
  if (rank_ == 0 && !before.empty())
    std::filesystem::remove_all(std::filesystem::path(task_.checkpoint_dir) / before);
}

bool RunCheckpoints::IsLate() const {
  return rank_ == 0 && task_.checkpoint_seconds > 0 &&
         std::chrono::steady_clock::now() - saved_ > std::chrono::seconds(task_.checkpoint_seconds);
}

}  // namespace dsat::engine
