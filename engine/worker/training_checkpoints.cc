// The checkpoints that a training saves.
#include "engine/worker/training_checkpoints.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "base/files.h"
#include "engine/files/checkpoint_manifest.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTagBegin = "global_step";

std::string TagOf(int64_t step) {
  return fmt::format("{}{}", kTagBegin, step);
}

// The step of a tag that TagOf has made.
std::optional<int64_t> StepOf(const std::string& tag) {
  if (!tag.starts_with(kTagBegin)) return std::nullopt;
  int64_t step = 0;
  std::from_chars(tag.data() + kTagBegin.size(), tag.data() + tag.size(), step);
  return TagOf(step) == tag ? std::optional(step) : std::nullopt;
}

}  // namespace

TrainingCheckpoints::TrainingCheckpoints(std::string dir, int64_t keep, int rank)
    : dir_(std::move(dir)), keep_(keep), rank_(rank) {}

void TrainingCheckpoints::Save(Engine& engine) {
  if (dir_.empty()) return;
  const int64_t step = engine.num_steps();
  engine.SaveCheckpoint(dir_, TagOf(step));
  saved_ = std::chrono::steady_clock::now();
  newest_ = step;
  if (rank_ == 0) RemoveOld(step);
}

// The file is replaced before the next Save can remove what it named before.
void TrainingCheckpoints::SaveBest(Engine& engine) {
  if (dir_.empty()) return;
  if (newest_ != engine.num_steps()) Save(engine);
  if (rank_ == 0) WriteFileAtomic(dir_ + "/" + kBestTag, TagOf(engine.num_steps()));
}

// Of the steps up to this one: a later one belongs to a run that this one was not continued from.
void TrainingCheckpoints::RemoveOld(int64_t step) const {
  const std::string best_file = dir_ + "/" + kBestTag;
  const std::string best = fs::exists(best_file) ? ResolveTag(dir_, kBestTag) : "";
  std::set<int64_t, std::greater<>> steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    const std::optional<int64_t> other = StepOf(entry.path().filename());
    if (other && *other <= step) steps.insert(*other);
  }
  int64_t num_kept = 0;
  for (const int64_t each : steps) {
    if (num_kept++ < keep_ || TagOf(each) == best) continue;
    fs::remove_all(fs::path(dir_) / TagOf(each));
  }
}

}  // namespace dsat::engine
