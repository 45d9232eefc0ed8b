// The parent process of the ranks of one attempt: it starts them, waits, and leaves no process
// behind.
//
// As a child subreaper it inherits every orphan below it, so that there are no descendants if there
// are no children, even if the ranks have started daemons. It sleeps in poll() until a child ends,
// the runner sends a message or closes the connection, or a grace time is over.
#include "searcher/processes/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/num_cores.h"
#include "base/unique_fd.h"
#include "base/version.h"
#include "engine/runtime/rank_variables.h"
#include "searcher/processes/exit_report.h"
#include "searcher/processes/host_address.h"
#include "searcher/processes/leftovers.h"
#include "searcher/processes/process_tree.h"
#include "searcher/processes/rank_command.h"
#include "searcher/processes/remote_folder.h"
#include "searcher/processes/spawn.h"
#include "searcher/processes/supervise_wire.h"

namespace dsat {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The pause between two rounds of SIGKILL, in which processes may have been created.
constexpr milliseconds kKillRound{5};
// A process that survives SIGKILL for this time hangs in the kernel, and waiting longer would hang
// the search.
constexpr milliseconds kKillLimit{20000};
// The time-out for the order, which the runner sends at once.
constexpr int kOrderLimitMs = 120'000;

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

// Forks and runs `command` in `work_dir`, in a new process group, with empty standard input, output
// and errors in its log, default signal settings, and no open files except `group_fd`, the memory
// file that the ranks share (engine/runtime/rank_variables.h). The rank is killed when this process
// dies, and is the kernel's first choice when host memory runs out. Throws if the log cannot be
// written or fork fails. A command that cannot be run writes an error to its log and exits with
// 127.
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

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

class Supervisor {
 public:
  Supervisor(LineChannel& control, SuperviseOrder order, int signal_fd)
      : control_(control), order_(std::move(order)), signal_fd_(signal_fd) {}

  // Returns when there are no descendants.
  SuperviseReport Run();

 private:
  enum class Phase {
    kRunning,      // No limit.
    kSiblings,     // A rank has failed, here or on another host; the others may end by
                   // themselves until the deadline.
    kTerminating,  // All have received SIGTERM and may end until the deadline.
    kKilling,      // Rounds of SIGKILL until the deadline.
  };

  void StartRanks();
  bool Reap();
  void RankEnded(int rank, int exit_code);
  void AwaitSiblings();
  void Escalate();
  void Terminate(milliseconds grace);
  void Kill();
  void Wait();
  void Listen();
  void OnMessage(const Json& message);
  void StopAsked(milliseconds grace);
  int PollTimeoutMs() const;

  LineChannel& control_;
  SuperviseOrder order_;
  int signal_fd_;
  std::optional<RemoteFolder> folder_;  // nullopt on the runner's host.
  ExitReport report_;
  std::vector<pid_t> pids_;  // By rank.
  size_t num_ended_ = 0;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point last_heard_ = Clock::now();  // From the runner.
};

void Supervisor::StartRanks() {
  const UniqueFd group(memfd_create("dsat-group", 0));
  if (group.get() < 0) ThrowErrno("memfd_create", errno);
  if (order_.remote) folder_.emplace(order_);
  for (const RankCommand& ordered : order_.ranks) {
    const RankCommand command = folder_ ? folder_->Moved(ordered) : ordered;
    const std::string& start = folder_ ? folder_->path() : order_.work_dir;
    const std::string& dir = command.work_dir.empty() ? start : command.work_dir;
    pids_.push_back(StartRank(command, dir, group.get()));
    report_.exit_codes.push_back(-1);
  }
}

void Supervisor::RankEnded(int rank, int exit_code) {
  report_.exit_codes[rank] = exit_code;
  ++num_ended_;
  const bool is_first = phase_ == Phase::kRunning && exit_code != 0;
  const bool is_cause =
      phase_ == Phase::kSiblings && Crashed(exit_code) && !Crashed(report_.exit_code);
  if (!is_first && !is_cause) return;
  report_.first_failed_rank = rank;
  report_.exit_code = exit_code;
  if (!is_first) return;
  if (control_.fd() >= 0) control_.Send({{"rank_failed", true}});
  AwaitSiblings();
}

void Supervisor::AwaitSiblings() {
  phase_ = Phase::kSiblings;
  deadline_ = Clock::now() + order_.grace.siblings;
}

// Collects the processes that have ended; returns false if there are no children.
bool Supervisor::Reap() {
  while (true) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid == 0) return true;
    if (pid < 0) return errno == EINTR;
    const auto rank = std::find(pids_.begin(), pids_.end(), pid);
    if (rank == pids_.end()) continue;  // An orphan that we inherited.
    RankEnded(static_cast<int>(rank - pids_.begin()), ExitCodeOf(status));
    *rank = -1;  // The pid may be reused.
  }
}

void Supervisor::Terminate(milliseconds grace) {
  phase_ = Phase::kTerminating;
  deadline_ = Clock::now() + grace;
  SignalDescendants(SIGTERM);
}

void Supervisor::Kill() {
  phase_ = Phase::kKilling;
  deadline_ = Clock::now() + kKillLimit;
}

void Supervisor::Escalate() {
  // Processes that remain after all ranks have ended are not needed.
  const bool leftovers = num_ended_ == pids_.size() && phase_ < Phase::kTerminating;
  if (leftovers || (phase_ == Phase::kSiblings && Clock::now() >= deadline_)) {
    Terminate(order_.grace.terminate);
  }
  if (phase_ == Phase::kTerminating && Clock::now() >= deadline_) Kill();
  if (phase_ == Phase::kKilling) SignalDescendants(SIGKILL);
}

void Supervisor::StopAsked(milliseconds grace) {
  if (phase_ == Phase::kRunning) report_.killed_by_us = true;
  if (phase_ < Phase::kTerminating) {
    Terminate(grace);
  } else if (phase_ == Phase::kTerminating) {
    deadline_ = std::min(deadline_, Clock::now() + grace);
  }
}

void Supervisor::Listen() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) StopAsked(order_.grace.terminate);
  }
  if (control_.fd() < 0) return;
  const bool connected = control_.Receive();
  while (const std::optional<std::string> line = control_.NextLine()) {
    last_heard_ = Clock::now();
    OnMessage(Json::parse(*line));
  }
  const bool is_forgotten = order_.remote && Clock::now() - last_heard_ > order_.grace.silence;
  if (connected && !is_forgotten) return;
  control_.Close();  // The runner is gone: the ranks are killed at once.
  Kill();
}

void Supervisor::OnMessage(const Json& message) {
  if (const auto grace = message.find("stop_grace_ms"); grace != message.end())
    StopAsked(milliseconds(grace->get<int64_t>()));
  if (message.contains("sibling_failed") && phase_ == Phase::kRunning) AwaitSiblings();
}

int Supervisor::PollTimeoutMs() const {
  if (phase_ == Phase::kKilling) return static_cast<int>(kKillRound.count());
  if (deadline_ == Clock::time_point::max() && !order_.remote) return -1;
  const Clock::time_point silence = order_.remote ? last_heard_ + order_.grace.silence : deadline_;
  const auto left = std::chrono::ceil<milliseconds>(std::min(deadline_, silence) - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

void Supervisor::Wait() {
  std::array<pollfd, 2> fds = {{{signal_fd_, POLLIN, 0}, {control_.fd(), POLLIN, 0}}};
  poll(fds.data(), fds.size(), PollTimeoutMs());
  Listen();
}

SuperviseReport Supervisor::Run() {
  const std::optional<int64_t> oom_kills = CountOomKills();
  try {
    StartRanks();
  } catch (const Error& error) {
    report_.first_failed_rank = static_cast<int>(pids_.size());
    report_.exit_code = 127;
    report_.not_started = error.code() != ErrorCode::kFailedPrecondition;  // Other hosts may do.
    report_.log_tail = error.what();
    report_.exit_codes.resize(order_.ranks.size(), report_.exit_code);
    Kill();
  }
  Listen();  // More messages may have arrived with the order.
  while (Reap()) {
    Escalate();
    if (phase_ == Phase::kKilling && Clock::now() >= deadline_) {
      Log(LogLevel::kError, "processes survive SIGKILL", {{"num", ChildrenOf(getpid()).size()}});
      break;
    }
    Wait();
  }
  for (const RankCommand& rank : order_.ranks)
    if (rank.buffers_port > 0) RemoveSharedBuffers(rank.buffers_port);
  if (oom_kills) report_.oom_kills = CountOomKills().value_or(*oom_kills) - *oom_kills;
  SuperviseReport all{report_, {}};
  if (folder_) all.logs = folder_->Logs(order_.ranks);
  folder_.reset();  // This process ends without destructors.
  return all;
}

// The connection to the runner, moved from standard input and output, which are then /dev/null. All
// other files are closed, because ranks and other children of the runner could keep them open.
LineChannel TakeControl() {
  close_range(STDERR_FILENO + 1, ~0U, 0);
  UniqueFd in(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  UniqueFd out(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!in || !out) ThrowErrno("standard input and output", errno);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) ThrowErrno("/dev/null", errno);
  dup2(null.get(), STDIN_FILENO);
  dup2(null.get(), STDOUT_FILENO);
  if (fcntl(STDERR_FILENO, F_GETFD) < 0) dup2(null.get(), STDERR_FILENO);
  return {std::move(in), std::move(out)};
}

// The ssh server gives both ends of the connection: "client port server port". Slurm gives the
// address of srun.
SuperviseHello MakeHello() {
  SuperviseHello hello = {.version = kVersion, .num_cores = NumCores()};
  if (const char* const connection = std::getenv("SSH_CONNECTION"); connection != nullptr) {
    std::string port;
    std::istringstream(connection) >> hello.runner_address >> port >> hello.address;
  }
  if (const char* const launcher = std::getenv("SLURM_LAUNCH_NODE_IPADDR"); launcher != nullptr) {
    hello.runner_address = launcher;
    hello.address = RouteTo(launcher).here;
  }
  if (const char* const devices = std::getenv("CUDA_VISIBLE_DEVICES"); devices != nullptr)
    hello.devices = devices;
  return hello;
}

UniqueFd BlockSignals() {
  signal(SIGPIPE, SIG_IGN);  // A closed terminal must not end this process before the ranks.
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal_number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP})
    sigaddset(&mask, signal_number);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
  UniqueFd fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd.get() < 0) ThrowErrno("signalfd", errno);
  return fd;
}

std::optional<SuperviseOrder> ReceiveOrder(LineChannel& control) {
  while (true) {
    if (const auto line = control.NextLine()) return SuperviseOrderFromJson(Json::parse(*line));
    pollfd fd = {control.fd(), POLLIN, 0};
    if (poll(&fd, 1, kOrderLimitMs) == 0 || !control.Receive()) return std::nullopt;
  }
}

}  // namespace

void SuperviseMain() {
  // The greeting gets a line of its own also behind what a login has printed.
  [[maybe_unused]] const ssize_t n = write(STDOUT_FILENO, "\n", 1);
  LineChannel control = TakeControl();
  setsid();  // Fails if this process already leads a session, which is fine.
  const UniqueFd signals = BlockSignals();
  // If this process is stopped when ssh's server dies, it still has to end its ranks. A runner on
  // this host has asked for it at the start (spawn.h).
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) ThrowErrno("PR_SET_CHILD_SUBREAPER", errno);
  control.Send({{"hello", ToJson(MakeHello())}});
  std::optional<SuperviseOrder> order = ReceiveOrder(control);
  if (!order) _exit(1);  // The runner ended before it sent the order.
  Supervisor supervisor(control, *std::move(order), signals.get());
  const SuperviseReport report = supervisor.Run();
  _exit(control.fd() >= 0 && control.Send({{"report", ToJson(report)}}) ? 0 : 1);
}

}  // namespace dsat
