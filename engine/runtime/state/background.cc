// One thread that runs tasks in order.
#include "engine/runtime/state/background.h"

#include <utility>

namespace dsat::engine {

int64_t Background::Submit(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return ++num_submitted_;
}

void Background::Wait(int64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_done_ >= ticket || error_ != nullptr; });
  if (num_done_ < ticket) std::rethrow_exception(error_);
}

void Background::Run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (error_ == nullptr) {
    changed_.wait(lock, stop, [this] { return !tasks_.empty(); });
    if (stop.stop_requested()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    if (error_ == nullptr) ++num_done_;
    changed_.notify_all();
  }
}

}  // namespace dsat::engine
