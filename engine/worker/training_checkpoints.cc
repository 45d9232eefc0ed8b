// The checkpoints that a training saves.
#include "engine/worker/training_checkpoints.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "base/regex.h"
#include "engine/comm/run_together.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/runtime/checkpoint/checkpoint.h"

namespace dsat::engine {
namespace {

constexpr char kBatch[] = "train_batch_size";

bool Matches(const std::string& key, const char* pattern) {
  return RE2::FullMatch(key, RE2(pattern, RegexOptions()));
}

// Whether a training with another value of the key is another one.
bool IsIdentity(const std::string& key, const Json& was, const Json& is) {
  if (key == "/optimizer/type") return MomentsOf(was) != MomentsOf(is);
  // The weights from which it began, and keys that may change on the way.
  return Matches(key, "/(model|data)/.*") &&
         !Matches(key, "/model/(weights|config|frozen).*|/data/(size|validation).*");
}

std::string TextOf(const Json& value) {
  return value.is_null() ? "not given" : value.dump();
}

}  // namespace

namespace fs = std::filesystem;

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

std::vector<std::string> TrainingCheckpoints::Continue(Engine& engine, ProcessGroup& group,
                                                       Json record) {
  record_ = std::move(record);
  std::vector<std::string> tags;
  if (rank_ == 0 && !dir_.empty()) tags = TagsToContinue(dir_);
  std::string reasons;
  for (size_t i = 0;; ++i) {
    // All ranks try the tags that rank 0 has found.
    const std::string line = TextOfRank(group, 0, i < tags.size() ? tags[i] + "\n" : "");
    if (line.empty()) break;
    const std::string tag = line.substr(0, line.size() - 1);
    const std::string name = tag.empty() ? TagIn(dir_, "latest") : tag;
    try {
      std::string changes;
      RunTogether(group, "comparing a checkpoint with the training", [&] {
        const std::string folder = dir_ + "/" + ResolveTag(dir_, tag);
        changes = ChangesSince(ReadManifest(folder), record_, folder);
      });
      engine.LoadCheckpoint(dir_, tag);
      std::vector<std::string> warnings;
      if (!reasons.empty())
        warnings.push_back(
            fmt::format("left out as not good: {}: continuing from {}/{}", reasons, dir_, name));
      if (!changes.empty()) warnings.push_back("changed from now on: " + changes);
      for (const std::string& warning : warnings)
        Log(LogLevel::kWarn, warning);
      Log(LogLevel::kInfo, "continuing",
          {{"checkpoint", dir_ + "/" + name}, {"step", engine.num_steps()}});
      return warnings;
    } catch (const Error& error) {
      const bool is_bad = error.code() == ErrorCode::kNotFound ||
                          error.code() == ErrorCode::kDataLoss ||
                          error.code() == ErrorCode::kAborted;  // Another rank says.
      if (group.MaxScalar(is_bad ? 0 : 1) > 0) throw;
      const std::string reason = error.what();
      reasons += (reasons.empty() ? "" : "; ") + reason.substr(0, reason.find(kAnotherOne));
      damaged_.insert(name);
    }
  }
  if (reasons.empty()) return {};
  Throw(ErrorCode::kDataLoss,
        "no checkpoint of {} is good: {}: move this folder away to train from the beginning", dir_,
        reasons);
}

void TrainingCheckpoints::Save(Engine& engine, bool wait) {
  if (dir_.empty()) return;
  Finish(/*wait=*/true);
  const auto began = std::chrono::steady_clock::now();
  save_ = engine.BeginCheckpoint(dir_, TagOf(engine.num_steps()), {{"training", record_}});
  newest_ = engine.num_steps();
  damaged_.erase(TagOf(engine.num_steps()));
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
  const std::string best = TagIn(dir_, kBestTag);
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
  const std::string best = TagIn(dir_, kBestTag);
  std::set<int64_t, std::greater<>> steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    const std::optional<int64_t> other = StepOf(entry.path().filename());
    if (other && *other <= *newest_ && !IsForeign(entry.path())) steps.insert(*other);
  }
  int64_t num_kept = 0;
  for (const int64_t each : steps) {
    const std::string tag = TagOf(each);
    if (!damaged_.contains(tag) && (num_kept++ < keep_ || tag == best)) continue;
    RemoveCheckpoint(dir_ + "/" + tag);
  }
}

Json RecordOf(const TrialTask& task, const DsConfig& config, const Dataset& data, int64_t seed) {
  Json record = {{"model", task.model},
                 {"data", task.data},
                 {"optimizer", task.ds_config.value("optimizer", Json::object())},
                 {"scheduler", task.ds_config.value("scheduler", Json())},
                 {"gradient_clipping", task.ds_config.value("gradient_clipping", Json())},
                 {"seed", seed},
                 {kBatch, config.batch.train_batch_size}};
  record["data"]["size"] = data.size();
  record["optimizer"]["type"] = config.optimizer.type;  // In lower case.
  return record;
}

std::string ChangesSince(const CheckpointManifest& manifest, const Json& record,
                         const std::string& folder) {
  const Json* const found = FindAtPointer(manifest.client_state, "/training");
  Json saved = found != nullptr && found->is_object() ? *found : Json::object();
  saved[kBatch] = manifest.engine.value(kBatch, record.at(kBatch));
  Json compared = record;
  for (const auto& [section, value] : record.items())
    if (!saved.contains(section)) compared.erase(section);
  const Json was = saved.flatten(), is = compared.flatten();
  const bool same_size = was.value("/data/size", Json()) == is.value("/data/size", Json());
  Json all = was;
  all.update(is);
  std::vector<std::string> refused, changes;
  for (const auto& [key, unused] : all.items()) {
    const Json before = was.value(key, Json()), now = is.value(key, Json());
    const bool may_move = same_size && Matches(key, "/data/(path|images|labels|tokenizer).*");
    if (before == now || may_move) continue;
    const char* const note =
        key.ends_with(kBatch) ? " (a learning rate belongs to a batch size)" : "";
    (IsIdentity(key, before, now) ? refused : changes)
        .push_back(fmt::format("{} was {} and is {}{}", key, TextOf(before), TextOf(now), note));
  }
  if (refused.empty()) return fmt::format("{}", fmt::join(changes, "; "));
  Throw(ErrorCode::kInvalidArgument,
        "{} is of another training: {}: set this back, or train into another folder", folder,
        fmt::join(refused, "; "));
}

}  // namespace dsat::engine
