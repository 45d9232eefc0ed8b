// Ensures that an experiment has one search runner.
#include "searcher/search/runner_lock.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// The path of an existing file without symbolic links, so that all names of it are one.
std::string RealPath(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? fs::absolute(path).string() : real.string();
}

std::string LockPath(const std::string& store_path, ExperimentId id) {
  return fmt::format("{}.exp{}.lock", RealPath(store_path), id);
}

std::string OwnerPath(const std::string& dir) {
  return dir + "/experiment.json";
}

// Null if the folder belongs to nobody.
Json OwnerOf(const std::string& dir) {
  return fs::exists(OwnerPath(dir)) ? ReadJsonFile(OwnerPath(dir)) : Json();
}

// The name of a file in a folder without owner that results would replace, such as a config that a
// user has written; "" if there is none.
std::string FileToKeep(const std::string& dir) {
  for (const char* name : {"ds_config.json", "metrics.json", "command.txt"})
    if (fs::exists(dir + "/" + name)) return name;
  return "";
}

bool IsFree(const std::string& dir, const Json& owner) {
  const Json there = OwnerOf(dir);
  return there.is_null() ? FileToKeep(dir).empty() : there == owner;
}

void RefuseUnlessFree(const std::string& dir, const Json& owner) {
  if (IsFree(dir, owner)) return;
  const Json there = OwnerOf(dir);
  if (there.is_null()) {
    Throw(ErrorCode::kAlreadyExists,
          "{}/{}: no search has written this file, but the results would replace it; expected "
          "--out with another folder",
          dir, FileToKeep(dir));
  }
  Throw(ErrorCode::kFailedPrecondition,
        "{}: this folder has the results of experiment {} of {}; expected --out with another "
        "folder",
        dir, there.value("experiment", Json()).dump(), there.value("database", Json()).dump());
}

}  // namespace

RunnerLock RunnerLock::Acquire(const std::string& store_path, ExperimentId id) {
  if (store_path == ":memory:") return RunnerLock(std::nullopt);
  return RunnerLock(FileLock::Acquire(LockPath(store_path, id),
                                      fmt::format("experiment {} is being run by", id)));
}

RunnerLock RunnerLock::LockFolder(const std::string& dir) {
  return RunnerLock(FileLock::Acquire(dir + "/.lock", fmt::format("{} is in use by", dir)));
}

void RunnerLock::CheckUnclaimed(const std::string& dir) {
  const RunnerLock lock = LockFolder(dir);
  RefuseUnlessFree(dir, nullptr);
}

RunnerLock RunnerLock::ClaimFolder(const std::string& dir, const Json& owner) {
  RunnerLock lock = LockFolder(dir);
  if (owner.is_null()) return lock;
  RefuseUnlessFree(dir, owner);
  if (!fs::exists(OwnerPath(dir))) WriteJsonFile(OwnerPath(dir), owner);
  return lock;
}

bool RunnerLock::IsHeld(const std::string& store_path, ExperimentId id) {
  return FileLock::IsHeld(LockPath(store_path, id));
}

void RunnerLock::CheckNotOurs(const Store& store, ExperimentId id) {
  if (!IsHeld(store.path(), id) && !store.HasRunner(id)) return;
  Throw(ErrorCode::kFailedPrecondition,
        "experiment {}: a search of dsat runs its trials; ask and tell are for experiments of "
        "\"dsat create\", whose trials you run yourself",
        id);
}

bool RunnerLock::AreTheirs(const Store& store, ExperimentId id) {
  const ExperimentRow row = store.GetExperiment(id);
  return !row.has_runner && row.num_trials > 0;
}

Json FolderOwner(const Store& store, ExperimentId id) {
  if (store.path() == ":memory:") return nullptr;
  return {{"database", RealPath(store.path())},
          {"experiment", id},
          {"created_at", store.GetExperiment(id).created_at}};
}

std::string FreeFolder(const std::string& dir, const Json& owner) {
  std::string candidate = dir;
  if (owner.is_null()) return candidate;
  for (int i = 2; !IsFree(candidate, owner); ++i)
    candidate = fmt::format("{}-{}", dir, i);
  return candidate;
}

}  // namespace dsat
