// The checkpoints that a training saves.
#include "engine/worker/training_checkpoints.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "base/files.h"
#include "engine/files/checkpoint_manifest.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

}  // namespace

TrainingCheckpoints::TrainingCheckpoints(std::string dir, int64_t keep, int rank)
    : dir_(std::move(dir)), keep_(keep), rank_(rank) {}

void TrainingCheckpoints::SaveOnlyIfShared(ProcessGroup& group) {
  std::error_code ignored;
  const auto all_see = [&](const fs::path& folder) {
    return group.MaxScalar(fs::is_directory(folder, ignored) ? 0 : 1) == 0;
  };
  // A host may have a folder of this name that is its own.
  bool is_shared = !dir_.empty() && all_see(fs::path(dir_).parent_path());
  if (is_shared && rank_ == 0) fs::create_directory(dir_, ignored);
  is_shared = is_shared && group.MaxScalar(0) == 0 && all_see(dir_);
  if (!is_shared) dir_.clear();
}

void TrainingCheckpoints::CheckNoneIsForeign() const {
  if (!fs::is_directory(dir_)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    if (!StepOf(entry.path().filename()) || !IsForeign(entry.path())) continue;
    Throw(
        ErrorCode::kAlreadyExists,
        "{}: it holds files, but none of a checkpoint of dsat; train into another folder, or move "
        "it away",
        entry.path().string());
  }
}

void TrainingCheckpoints::Save(Engine& engine, bool wait) {
  if (dir_.empty()) return;
  Finish(/*wait=*/true);
  const auto began = std::chrono::steady_clock::now();
  save_ = engine.BeginCheckpoint(dir_, TagOf(engine.num_steps()));
  newest_ = engine.num_steps();
  if (wait) Finish(wait);
  saved_ = std::chrono::steady_clock::now();
  save_ms_ = std::chrono::duration<double, std::milli>(saved_ - began).count();
}

void TrainingCheckpoints::OnStep(const StepResult& step) {
  if (!std::isfinite(step.loss)) save_.reset();
  Finish(/*wait=*/!std::isfinite(step.grad_norm));
}

// Ends the last Save, if it has not ended and is on disk; waits for the disk if `wait`.
void TrainingCheckpoints::Finish(bool wait) {
  if (save_ == nullptr) return;
  std::unique_ptr<CheckpointSave> save = std::move(save_);  // It is given up if it throws.
  if (!save->Finish(wait)) {
    save_ = std::move(save);
  } else if (rank_ == 0) {
    RemoveOld();
  }
}

bool TrainingCheckpoints::HasBest() const {
  const std::string best = Trimmed(ReadOrEmpty(dir_ + "/" + kBestTag));
  return !best.empty() && fs::exists(dir_ + "/" + best);
}

// The file is replaced before what it named before is removed.
void TrainingCheckpoints::SaveBest(Engine& engine) {
  if (dir_.empty()) return;
  if (newest_ != engine.num_steps()) Save(engine, /*wait=*/true);
  Finish(/*wait=*/true);
  if (rank_ != 0) return;
  WriteFileAtomic(dir_ + "/" + kBestTag, TagOf(engine.num_steps()));
  RemoveOld();  // The one that was the best before.
}

// Considers the steps up to the newest one: a later step belongs to a run that this one does not
// continue.
void TrainingCheckpoints::RemoveOld() const {
  const std::string best_file = dir_ + "/" + kBestTag;
  const std::string best = fs::exists(best_file) ? ResolveTag(dir_, kBestTag) : "";
  std::set<int64_t, std::greater<>> steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    const std::optional<int64_t> other = StepOf(entry.path().filename());
    if (other && *other <= *newest_ && !IsForeign(entry.path())) steps.insert(*other);
  }
  int64_t num_kept = 0;
  for (const int64_t each : steps) {
    if (num_kept++ < keep_ || TagOf(each) == best) continue;
    RemoveCheckpoint(dir_ + "/" + TagOf(each));
  }
}

}  // namespace dsat::engine
