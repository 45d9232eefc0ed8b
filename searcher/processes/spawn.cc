// Starts a process whose standard input and output are one socket.
#include "searcher/processes/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace dsat {
namespace {

struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

SocketPair MakeSocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) ThrowErrno("socketpair", errno);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// The settings of posix_spawn: a new session, default signal settings, the socket as standard input
// and output, and no other open files except standard error.
class SpawnSettings {
 public:
  SpawnSettings(int control_fd, int error_fd) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, control_fd, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, control_fd, STDOUT_FILENO);
    if (error_fd >= 0) posix_spawn_file_actions_adddup2(&actions_, error_fd, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
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

  pid_t Spawn(std::vector<std::string> words, const std::string& what) const {
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    const int error =
        posix_spawnp(&pid, words[0].c_str(), &actions_, &attributes_, argv.data(), environ);
    if (error != 0) ThrowErrno(what, error);
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

Spawned Spawn(std::vector<std::string> words, int error_fd, const std::string& what) {
  SocketPair sockets = MakeSocketPair();
  const pid_t pid = SpawnSettings(sockets.theirs.get(), error_fd).Spawn(std::move(words), what);
  return {pid, std::move(sockets.ours)};
}

}  // namespace dsat
