// Starts a process whose standard input and output are one socket.
#include "searcher/processes/spawn.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace dsat {
namespace {

struct FdPair {
  UniqueFd ours;
  UniqueFd theirs;
};

FdPair MakeSocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) ThrowErrno("socketpair", errno);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// The half of Spawn in the child, in which only async-signal-safe calls are allowed: other threads
// of the parent may have held locks. What fails is written to `failure_fd` as an errno.
[[noreturn]] void BecomeProgram(char* const* argv, pid_t parent, int death_signal, int control_fd,
                                int error_fd, int failure_fd) {
  // Before the program is there, so that at no moment can one be stopped that nothing continues.
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(kExitNotRunnable);  // The parent died before prctl.
  setsid();
  dup2(control_fd, STDIN_FILENO);
  dup2(control_fd, STDOUT_FILENO);
  if (error_fd >= 0) dup2(error_fd, STDERR_FILENO);
  constexpr int kFailureFd = STDERR_FILENO + 1;
  if (failure_fd != kFailureFd) dup3(failure_fd, kFailureFd, O_CLOEXEC);
  close_range(kFailureFd + 1, ~0U, 0);
  ResetSignals();
  execvp(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t n = write(kFailureFd, &error, sizeof(error));
  _exit(kExitNotRunnable);
}

}  // namespace

void ResetSignals() {
  for (int signal_number = 1; signal_number < NSIG; ++signal_number)
    signal(signal_number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

Spawned Spawn(std::vector<std::string> words, int error_fd, const std::string& what,
              int death_signal) {
  FdPair sockets = MakeSocketPair();
  FdPair failure = MakeSocketPair();
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // Our handlers must not run in the child.
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0)
    BecomeProgram(argv.data(), parent, death_signal, sockets.theirs.get(), error_fd,
                  failure.theirs.get());
  int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) ThrowErrno("fork", error);
  failure.theirs.Reset();
  ssize_t num_read = 0;  // The end of the file: the program has replaced the child.
  while ((num_read = read(failure.ours.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (num_read == 0) return {pid, std::move(sockets.ours)};
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  ThrowErrno(what, error);
}

}  // namespace dsat
