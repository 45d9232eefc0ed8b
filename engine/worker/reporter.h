// Sends a rank's reports to the search runner, or prints them if there is none.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "proto/client.h"
#include "proto/trial_task.h"

namespace dsat::engine {

class Reporter {
 public:
  // Connects in the background and reports 0 steps.
  Reporter(const TrialTask& task, const std::string& key, int rank);
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  // Never blocks. A thread sends the newest progress at most ten times a second, and always sends
  // the last one. If the runner does not answer, this is logged once, and training continues.
  void Progress(int64_t step);
  // Says that this rank is at work within a step. Cheap; the thread repeats the last progress.
  void Alive() { alive_ = true; }
  // Says so until the object ends, for an hour at most: for work that cannot call Alive.
  class LongWork {
   public:
    explicit LongWork(Reporter& reporter) : reporter_(reporter) {
      reporter_.long_work_until_ = Clock::now() + std::chrono::hours(1);
    }
    LongWork(const LongWork&) = delete;
    LongWork& operator=(const LongWork&) = delete;
    ~LongWork() { reporter_.long_work_until_ = Clock::time_point(); }

   private:
    Reporter& reporter_;
  };
  // Reports from rank 0 that training begins after `step` steps, with warnings about its
  // checkpoint. Waits for the answer; if the runner gives none, this is logged.
  void Begins(int64_t step, const std::vector<std::string>& warnings);
  // True after the runner has decided to stop this trial.
  bool stop_requested() const { return stop_requested_; }

  // Reports a measurement from rank 0 and returns the next point to measure. Prints one JSON line
  // if there is no runner.
  std::optional<Point> Measured(const PointResult& result,
                                const std::optional<ModelProfile>& profile);
  // Sends the reason to the runner and to the log. Does not throw, since the caller is exiting.
  void Infeasible(const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;

  void Run(const std::stop_token& stop);
  bool Send(int64_t step);

  const int rank_;
  std::optional<TrialClient> client_;
  std::atomic<bool> stop_requested_ = false;
  std::atomic<bool> alive_ = false;
  std::atomic<Clock::time_point> long_work_until_ = Clock::time_point();
  bool unreachable_ = false;  // Whether this was logged. Only the thread uses it.

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<int64_t> newest_ = 0;  // Completed steps that are to be reported.
  std::jthread thread_;                // Last: it uses the others.
};

}  // namespace dsat::engine
