// Ensures that an experiment has one search runner, and a folder of results one writer: advisory
// locks that end with their process.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/file_lock.h"
#include "base/json.h"
#include "db/store.h"
#include "proto/trial.h"

namespace dsat {

// A FileLock on "<database>.exp<id>.lock", without symbolic links in the name, or on a file in a
// folder.
class RunnerLock {
 public:
  // Throws kFailedPrecondition naming the experiment and the process that holds the lock. A
  // database in memory (":memory:") has one process only and needs no lock.
  static RunnerLock Acquire(const std::string& store_path, ExperimentId id);

  // Locks a folder, which exists. Throws kFailedPrecondition naming the process that has locked it.
  static RunnerLock LockFolder(const std::string& dir);

  // Throws as ClaimFolder for an experiment that is yet to be recorded.
  static void CheckUnclaimed(const std::string& dir);

  // Locks a folder, which then belongs to `owner` (FolderOwner) for good. Throws as LockFolder,
  // kFailedPrecondition if it belongs to another experiment, and kAlreadyExists if it belongs to
  // none but has files of the names of results.
  static RunnerLock ClaimFolder(const std::string& dir, const Json& owner);

  // Whether a process holds it.
  static bool IsHeld(const std::string& store_path, ExperimentId id);

  // Throws kFailedPrecondition if a search of dsat runs the experiment's trials or has run them:
  // they are not for others to ask or tell.
  static void CheckNotOurs(const Store& store, ExperimentId id);
  // Whether another program has asked for trials, which it runs.
  static bool AreTheirs(const Store& store, ExperimentId id);

 private:
  explicit RunnerLock(std::optional<FileLock> lock) : lock_(std::move(lock)) {}

  std::optional<FileLock> lock_;
};

// The name of an experiment in its folder's experiment.json. Two databases at one path, one after
// the other, differ in the time at which they have created their experiments. Null for a database
// in memory, whose results belong to nobody.
Json FolderOwner(const Store& store, ExperimentId id);

// The first of `dir`, `dir`-2, `dir`-3, ... that ClaimFolder would let `owner` have.
std::string FreeFolder(const std::string& dir, const Json& owner);

}  // namespace dsat
