// One search runner per experiment: an advisory lock that ends with the process that holds it.
#ifndef DSAT_SEARCHER_RUNNER_LOCK_H_
#define DSAT_SEARCHER_RUNNER_LOCK_H_

#include <string>

#include "proto/trial.h"

namespace dsat {

// Held from Acquire to destruction. The lock is the kernel's (flock on "<database>.exp<id>.lock"),
// so that it is free again however the process ends; the file is removed on the way out, and one
// that a kill has left behind is taken over. Not thread-safe.
class RunnerLock {
 public:
  // Throws kFailedPrecondition naming the experiment and the process that holds the lock. A
  // database in memory (":memory:") has one process only and needs no lock.
  static RunnerLock Acquire(const std::string& store_path, ExperimentId id);

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
