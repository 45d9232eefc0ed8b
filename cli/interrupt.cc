// Ctrl-C and SIGTERM through a signalfd, so that no code runs in a signal handler.
#include "cli/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "base/error.h"

namespace dsat::cli {

struct InterruptHandler::Impl {
  std::function<void()> on_interrupt;
  sigset_t blocked{};
  sigset_t before{};
  sighandler_t hup_before = SIG_ERR;  // SIG_ERR: it was not changed.
  sighandler_t pipe_before = SIG_ERR;
  UniqueFd signal_fd, stop_fd;
  std::thread thread;

  void Listen() {
    for (;;) {
      pollfd fds[] = {{signal_fd.get(), POLLIN, 0}, {stop_fd.get(), POLLIN, 0}};
      if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
      if (fds[1].revents != 0) return;
      signalfd_siginfo info{};
      if (fds[0].revents == 0 || read(signal_fd.get(), &info, sizeof(info)) != sizeof(info))
        continue;
      on_interrupt();
    }
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
  impl_->signal_fd = UniqueFd(signalfd(-1, &impl_->blocked, SFD_CLOEXEC | SFD_NONBLOCK));
  impl_->stop_fd = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!impl_->signal_fd || !impl_->stop_fd) ThrowErrno("listening for signals", errno);
  impl_->thread = std::thread([this] { impl_->Listen(); });
}

InterruptHandler::~InterruptHandler() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(impl_->stop_fd.get(), &one, sizeof(one));
  impl_->thread.join();
  pthread_sigmask(SIG_SETMASK, &impl_->before, nullptr);
  if (impl_->hup_before != SIG_ERR) signal(SIGHUP, impl_->hup_before);
  if (impl_->pipe_before != SIG_ERR) signal(SIGPIPE, impl_->pipe_before);
}

}  // namespace dsat::cli
