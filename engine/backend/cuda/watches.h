// The checks of threads that wait for a device whose work may never end by itself, such as a
// collective whose peer has ended.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace dsat::engine {

// Polls until `is_done`, or until `go_on` says no. Returns whether it is done. Most waits end
// before the first sleep does; a sleep costs the host less than a launch.
inline bool Poll(const std::function<bool()>& is_done, const std::function<bool()>& go_on) {
  constexpr int kNumSpins = 100;
  for (int spin = 0; spin < kNumSpins; ++spin) {
    if (is_done()) return true;
    std::this_thread::yield();
  }
  while (!is_done()) {
    if (!go_on()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds{20});
  }
  return true;
}

// The checks of one device. Thread-safe.
class Watches {
 public:
  // `check` throws when work of its owner's has failed, and lets the device continue.
  void Add(const void* owner, std::function<void()> check) {
    const std::lock_guard lock(mutex_);
    checks_[owner] = std::move(check);
  }
  // No check of this owner runs afterwards.
  void Remove(const void* owner) {
    const std::lock_guard lock(mutex_);
    checks_.erase(owner);
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return checks_.empty();
  }
  // Waits until `is_done`, which the device's work brings about. If a check throws, rethrows its
  // exception, but not before: what the caller frees then may wait for the device.
  void Wait(const std::function<bool()>& is_done) {
    std::exception_ptr failure;
    const auto check_all = [&] {
      const std::lock_guard lock(mutex_);
      for (const auto& [owner, check] : checks_) {
        try {
          check();
        } catch (...) {
          if (failure == nullptr) failure = std::current_exception();
        }
      }
      return true;
    };
    Poll(is_done, check_all);
    check_all();  // A check that failed may have let the device continue.
    if (failure != nullptr) std::rethrow_exception(failure);
  }

 private:
  mutable std::mutex mutex_;
  std::map<const void*, std::function<void()>> checks_;
};

}  // namespace dsat::engine
