// A process beside the test's own.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "base/error.h"

namespace dsat::engine {

// A child process, ended and reaped with the object.
class Child {
 public:
  explicit Child(const std::function<void()>& fn) : pid_(fork()) {
    if (pid_ != 0) return;
    try {
      fn();
    } catch (const Error&) {
    }
    _exit(0);  // Without destructors, as a crash.
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    Kill();
    Reap();
  }

  pid_t pid() const { return pid_; }
  void Kill() const {
    if (!reaped_) kill(pid_, SIGKILL);
  }
  void Reap() {
    if (!reaped_) waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }

 private:
  pid_t pid_;
  bool reaped_ = false;
};

}  // namespace dsat::engine
