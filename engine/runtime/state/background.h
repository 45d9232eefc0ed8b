// One thread that runs tasks in order. Collectives run on it while the rank computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace dsat::engine {

// One thread calls Submit and Wait. What a task wrote is visible after its Wait. The destructor
// waits for the task that is running, and drops the others.
class Background {
 public:
  Background() : thread_([this](const std::stop_token& stop) { Run(stop); }) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Returns the task's ticket: 1, 2, ...
  int64_t Submit(std::function<void()> task);
  // Waits until the task has run. Rethrows what it, or a task before it, threw; no task runs after
  // an exception.
  void Wait(int64_t ticket);

 private:
  void Run(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;
  int64_t num_submitted_ = 0;
  int64_t num_done_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;  // Last: it uses the others.
};

}  // namespace dsat::engine
