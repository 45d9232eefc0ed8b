// Ensures that an experiment has one search runner: an advisory lock that ends with its process.
#ifndef DSAT_SEARCHER_RUNNER_LOCK_H_
#define DSAT_SEARCHER_RUNNER_LOCK_H_

#include <string>

#include "proto/trial.h"

namespace dsat {

// Held from Acquire to destruction. The lock is flock on "<database>.exp<id>.lock", so that it is
// released however the process ends. The destructor removes the file; a file left by a killed
// process is reused. Not thread-safe.
class RunnerLock {
 public:
  // Throws kFailedPrecondition naming the experiment and the process that holds the lock. A
  // database in memory (":memory:") has one process only and needs no lock.
  static RunnerLock Acquire(const std::string& store_path, ExperimentId id);

  // Whether a process holds it.
  static bool IsHeld(const std::string& store_path, ExperimentId id);

  RunnerLock(RunnerLock&& other) noexcept;
  RunnerLock& operator=(RunnerLock&& other) noexcept;
  ~RunnerLock();

 private:
  RunnerLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  void Release();

  std::string path_;
  int fd_ = -1;  // -1: nothing is held.
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_RUNNER_LOCK_H_
