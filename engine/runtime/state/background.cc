// One thread that runs tasks in order.
#include "engine/runtime/state/background.h"

#include <utility>

namespace dsat::engine {

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

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

void Background::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
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
    if (error == nullptr) {
      ++num_done_;
    } else {
      error_ = error;
      stop_ = true;
    }
    changed_.notify_all();
  }
}

}  // namespace dsat::engine
