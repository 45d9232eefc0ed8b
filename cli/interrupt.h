// Handles Ctrl-C and SIGTERM.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <thread>

namespace dsat::cli {

// The reaction to the end of the terminal, which also makes every further output fail.
enum class OnHangup { kInterrupt, kGoOn };

// While it exists, each SIGINT, SIGTERM or SIGHUP calls `on_interrupt` on a separate thread (not in
// a signal handler). At most one may exist. It must be constructed before other threads start,
// because it blocks the signals in this thread, which later threads inherit.
class InterruptHandler {
 public:
  // kGoOn: SIGHUP and SIGPIPE are ignored, so that work outlives its terminal.
  explicit InterruptHandler(std::function<void()> on_interrupt,
                            OnHangup on_hangup = OnHangup::kInterrupt);
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;
  ~InterruptHandler();

 private:
  sigset_t blocked_{}, before_{};
  sighandler_t hup_before_ = SIG_ERR;  // SIG_ERR: it was not changed.
  sighandler_t pipe_before_ = SIG_ERR;
  std::atomic<bool> ends_ = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace dsat::cli
