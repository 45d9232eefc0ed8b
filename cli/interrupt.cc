// Ctrl-C and SIGTERM are awaited by a thread, so that no code runs in a signal handler.
#include "cli/interrupt.h"

#include <pthread.h>

#include <utility>

namespace dsat::cli {

InterruptHandler::InterruptHandler(std::function<void()> on_interrupt, OnHangup on_hangup) {
  if (on_hangup == OnHangup::kGoOn) {
    hup_before_ = signal(SIGHUP, SIG_IGN);
    pipe_before_ = signal(SIGPIPE, SIG_IGN);
  }
  sigemptyset(&blocked_);
  for (const int number : {SIGINT, SIGTERM})
    sigaddset(&blocked_, number);
  // A blocked signal is received although it is ignored.
  if (on_hangup == OnHangup::kInterrupt) sigaddset(&blocked_, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
  thread_ = std::thread([this, on_interrupt = std::move(on_interrupt)] {
    for (int number = 0; sigwait(&blocked_, &number) == 0 && !ends_;)
      on_interrupt();
  });
}

InterruptHandler::~InterruptHandler() {
  ends_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);  // Only the thread receives it.
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  if (hup_before_ != SIG_ERR) signal(SIGHUP, hup_before_);
  if (pipe_before_ != SIG_ERR) signal(SIGPIPE, pipe_before_);
}

}  // namespace dsat::cli
