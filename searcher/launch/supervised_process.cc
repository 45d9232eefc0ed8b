// The runner's end of a supervisor: starts it, talks to it, collects it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "searcher/launch/launcher.h"
#include "searcher/launch/process_tree.h"
#include "searcher/launch/supervise_wire.h"

namespace dsat {
namespace {

constexpr int kTailLines = 50;
// Longer than a supervisor tries to kill what hangs in the kernel.
constexpr int kLastWaitMs = 25000;

struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

SocketPair MakeSocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) ThrowErrno("socketpair", errno);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// posix_spawn's settings: a session of its own, no inherited signal settings, the socket as the
// first descriptor after the standard ones. The rest of our files is closed by the supervisor.
class SpawnSettings {
 public:
  explicit SpawnSettings(int control_fd) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, control_fd, kSupervisorControlFd);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }

  pid_t Spawn(const std::string& binary) const {
    std::string program = binary;
    std::string command = "supervise";
    char* const argv[] = {program.data(), command.data(), nullptr};
    pid_t pid = 0;
    const int error = posix_spawn(&pid, binary.c_str(), &actions_, &attributes_, argv, environ);
    if (error != 0) ThrowErrno(binary + " supervise", error);
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

struct SupervisedProcess::Impl {
  Impl(UniqueFd socket, pid_t supervisor, const std::vector<RankCommand>& ranks)
      : control(std::move(socket)), pid(supervisor), pid_fd(OpenProcess(supervisor)) {
    for (const RankCommand& rank : ranks)
      log_paths.push_back(rank.log_path);
  }
  ~Impl() {
    if (report) return;
    control.Close();  // The supervisor kills everything below it and ends.
    pollfd ended = {pid_fd.get(), POLLIN, 0};
    if (pid_fd.get() >= 0 && poll(&ended, 1, kLastWaitMs) == 0) kill(pid, SIGKILL);
    Collect();
  }

  // Waits for the supervisor, which has closed its socket, and gives its exit status.
  int Collect() const {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
  ExitReport Finish(const std::optional<std::string>& line) const;

  LineSocket control;
  pid_t pid;
  UniqueFd pid_fd;
  std::vector<std::string> log_paths;
  std::optional<ExitReport> report;
};

ExitReport SupervisedProcess::Impl::Finish(const std::optional<std::string>& line) const {
  const int status = Collect();
  ExitReport result;
  if (line) {
    result = ExitReportFromJson(Json::parse(*line));
  } else {
    result.first_failed_rank = 0;
    result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    result.log_tail = "dsat: the supervisor of the ranks ended without a report";
  }
  const std::string& log = log_paths[std::max(result.first_failed_rank, 0)];
  const std::string tail = TailLines(log, kTailLines);
  const std::string between = tail.empty() || tail.back() == '\n' ? "" : "\n";
  result.log_tail = result.log_tail.empty() ? tail : tail + between + result.log_tail;
  return result;
}

SupervisedProcess SupervisedProcess::Start(const std::string& dsat_binary,
                                           const std::vector<RankCommand>& ranks,
                                           const std::string& work_dir, const GraceTimes& grace) {
  DSAT_CHECK(!ranks.empty());
  SocketPair sockets = MakeSocketPair();
  const pid_t pid = SpawnSettings(sockets.theirs.get()).Spawn(dsat_binary);
  sockets.theirs.Reset();
  auto impl = std::make_unique<Impl>(std::move(sockets.ours), pid, ranks);
  // If the supervisor is gone already, Poll says so.
  impl->control.Send(ToJson(SuperviseOrder{ranks, work_dir, grace}));
  return SupervisedProcess(std::move(impl));
}

SupervisedProcess::SupervisedProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SupervisedProcess::SupervisedProcess(SupervisedProcess&&) noexcept = default;
SupervisedProcess& SupervisedProcess::operator=(SupervisedProcess&&) noexcept = default;
SupervisedProcess::~SupervisedProcess() = default;

int SupervisedProcess::fd() const {
  return impl_->control.fd();
}

std::optional<ExitReport> SupervisedProcess::Poll() {
  if (!impl_->report && !impl_->control.Receive()) {
    impl_->report = impl_->Finish(impl_->control.NextLine());
  }
  return impl_->report;
}

void SupervisedProcess::Stop(std::chrono::milliseconds grace) {
  impl_->control.Send({{"stop_grace_ms", grace.count()}});
}

}  // namespace dsat
