// Starts one rank of a supervisor.
#include "searcher/processes/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "engine/runtime/rank_variables.h"
#include "searcher/processes/spawn.h"

namespace dsat {
namespace {

// The descriptor of the memory file in the ranks: the first after the standard ones.
constexpr int kRankGroupFd = 3;
// The kernel's scale ends at 1000. Raising the score needs no privilege.
constexpr int kOomScoreAdj = 500;

UniqueFd OpenLog(const std::string& path, bool continues) {
  const int begin = continues ? 0 : O_TRUNC;
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | begin | O_APPEND | O_CLOEXEC, 0644));
  if (fd.get() < 0) ThrowErrno(path, errno);
  return fd;
}

void BecomeOomVictim() {
  int score = 0;
  std::ifstream("/proc/self/oom_score_adj") >> score;
  if (score < kOomScoreAdj) std::ofstream("/proc/self/oom_score_adj") << kOomScoreAdj;
}

void ArrangeFiles(int log_fd, int null_fd, int group_fd) {
  dup2(null_fd, 0);
  dup2(log_fd, 1);
  dup2(log_fd, 2);
  dup2(group_fd, kRankGroupFd);
  close_range(kRankGroupFd + 1, ~0U, 0);
}

[[noreturn]] void ExitUnable(const char* what) {
  std::fprintf(stderr, "dsat: cannot run %s: %s\n", what, std::strerror(errno));
  std::fflush(stderr);
  _exit(kExitNotRunnable);
}

[[noreturn]] void RunChild(const RankCommand& command, const std::string& work_dir) {
  for (const auto& [key, value] : command.env)
    setenv(key.c_str(), value.c_str(), 1);
  setenv(engine::kEnvGroupFd, std::to_string(kRankGroupFd).c_str(), 1);
  if (chdir(work_dir.c_str()) != 0) ExitUnable(work_dir.c_str());
  std::vector<char*> argv;
  for (const std::string& argument : command.argv)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  ExitUnable(argv[0]);
}

}  // namespace

pid_t StartRank(const RankCommand& command, const std::string& work_dir, int group_fd) {
  const UniqueFd log = OpenLog(command.log_path, command.continues_log);
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) ThrowErrno("fork", errno);
  if (pid > 0) return pid;

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitNotRunnable);  // The parent died before prctl.
  setpgid(0, 0);
  ResetSignals();
  BecomeOomVictim();
  ArrangeFiles(log.get(), null.get(), group_fd);
  RunChild(command, work_dir);
}

}  // namespace dsat
