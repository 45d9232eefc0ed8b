// Ctrl-C and SIGTERM are awaited by a thread, so that no code runs in a signal handler.
#include "cli/interrupt.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <thread>

namespace dsat::cli {

struct InterruptHandler::Impl {
  std::function<void()> on_interrupt;
  sigset_t blocked{};
  sigset_t before{};
  sighandler_t hup_before = SIG_ERR;  // SIG_ERR: it was not changed.
  sighandler_t pipe_before = SIG_ERR;
  std::atomic<bool> ends = false;
  std::thread thread;

  void Listen() {
    for (int number = 0; sigwait(&blocked, &number) == 0 && !ends;)
      on_interrupt();
  }
};

InterruptHandler::InterruptHandler(std::function<void()> on_interrupt, OnHangup on_hangup)
    : impl_(std::make_unique<Impl>()) {
  if (on_hangup == OnHangup::kGoOn) {
    impl_->hup_before = signal(SIGHUP, SIG_IGN);
    impl_->pipe_before = signal(SIGPIPE, SIG_IGN);
  }
  impl_->on_interrupt = std::move(on_interrupt);
  sigemptyset(&impl_->blocked);
  for (const int number : {SIGINT, SIGTERM})
    sigaddset(&impl_->blocked, number);
  // A blocked signal is received although it is ignored.
  if (on_hangup == OnHangup::kInterrupt) sigaddset(&impl_->blocked, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &impl_->blocked, &impl_->before);
  impl_->thread = std::thread([this] { impl_->Listen(); });
}

InterruptHandler::~InterruptHandler() {
  impl_->ends = true;
  pthread_kill(impl_->thread.native_handle(), SIGTERM);  // It is the thread's alone.
  impl_->thread.join();
  pthread_sigmask(SIG_SETMASK, &impl_->before, nullptr);
  if (impl_->hup_before != SIG_ERR) signal(SIGHUP, impl_->hup_before);
  if (impl_->pipe_before != SIG_ERR) signal(SIGPIPE, impl_->pipe_before);
}

}  // namespace dsat::cli
