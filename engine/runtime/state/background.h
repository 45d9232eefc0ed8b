// One thread that runs tasks in order. Collectives run on it while the rank computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace dsat::engine {

// One thread calls Submit and Wait. What a task wrote is visible after its Wait.
class Background {
 public:
  Background() : thread_([this] { Run(); }) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  // Waits for the task that is running; drops the others.
  ~Background();

  // Returns the task's ticket: 1, 2, ...
  int64_t Submit(std::function<void()> task);
  // Waits until the task has run. Rethrows what it, or a task before it, threw; no task runs after
  // an exception.
  void Wait(int64_t ticket);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  int64_t num_submitted_ = 0;
  int64_t num_done_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace dsat::engine
