// The runner's view of a supervisor.
#include "searcher/processes/host_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "searcher/processes/exit_report.h"
#include "searcher/processes/process_tree.h"
#include "searcher/processes/spawn.h"

namespace dsat {
namespace {

// Longer than a supervisor tries to kill a process that hangs in the kernel.
constexpr int kLastWaitMs = 25000;
// Longer than a supervisor that is continued (SIGCONT) stays stopped, unless somebody stops it
// again.
constexpr int kContinueMs = 2000;
// Much less than GraceTimes::silence.
constexpr std::chrono::seconds kAlivePeriod{10};
// The size of the error output of the command that reaches a host which is shown.
constexpr int64_t kErrorEndBytes = 4096;
constexpr size_t kMostOtherTextBytes = size_t{1} << 20;

// Sends SIGKILL to the processes below a process.
void KillBelow(pid_t pid) {
  for (const pid_t child : ChildrenOf(pid)) {
    KillBelow(child);
    kill(child, SIGKILL);
  }
}

// Kills a supervisor that does not do it and the processes below it, including those that its ranks
// create meanwhile: as a subreaper it inherits these.
void KillTree(pid_t pid) {
  constexpr int kRounds = 3;
  for (int i = 0; i < kRounds; ++i)
    KillBelow(pid);
  kill(-pid, SIGKILL);  // It leads its group.
  kill(pid, SIGKILL);
}

bool IsStopped(pid_t pid) {
  const std::optional<ProcessStat> stat = StatOf(pid);
  return stat && stat->state == 'T';
}

// Waits for a process that was continued; false if it does not end, or is stopped again.
bool EndsByItself(pid_t pid, int pidfd) {
  pollfd end = {pidfd, POLLIN, 0};
  for (int waited = 0; waited < kLastWaitMs; waited += kContinueMs) {
    if (poll(&end, 1, kContinueMs) != 0) return true;
    if (IsStopped(pid)) return false;
  }
  return false;
}

}  // namespace

HostProcess::HostProcess(const LaunchHost& host, const std::string& dsat_binary)
    : name_(host.name),
      remote_(!host.reach.empty()),
      binary_(dsat_binary),
      line_{UniqueFd(), UniqueFd()} {
  std::vector<std::string> words = {dsat_binary, "supervise"};
  if (remote_) {
    errors_ = UniqueFd(memfd_create("dsat-errors", MFD_CLOEXEC));
    if (!errors_) ThrowErrno("memfd_create", errno);
    words = host.reach;
    words.push_back(fmt::format("exec {} supervise", ShellWord(dsat_binary)));
  }
  const std::string what =
      remote_ ? host.reach[0] + ", to reach " + name_ : words[0] + " supervise";
  // ssh may not look at its input for long, for example while a login hangs.
  Spawned spawned = Spawn(std::move(words), errors_.get(), what, remote_ ? SIGTERM : SIGCONT);
  pid_.value = spawned.pid;
  line_ = LineChannel(std::move(spawned.socket));
}

HostProcess::~HostProcess() {
  if (pid_.value < 0) return;
  line_.Close();  // The supervisor kills its processes and ends.
  Collect();
}

void HostProcess::Send(const Json& message) {
  if (ended_ || line_.Send(message) || !line_.IsStuck()) return;
  Refuse(fmt::format("it has read nothing for {} s", kSendTimeout / std::chrono::seconds(1)));
}

void HostProcess::Stop(std::chrono::milliseconds grace, std::chrono::milliseconds frozen) {
  kill(pid_.value, SIGCONT);
  Send({{"stop_grace_ms", grace.count()}});
  const auto stopped_at = std::chrono::steady_clock::now() + grace;
  // A connection on which no supervisor has been heard has no ranks that need time.
  kill_at_ = std::min(kill_at_, remote_ && !greeted_ ? stopped_at : stopped_at + frozen);
  kill_if_stopped_at_ =
      std::min(kill_if_stopped_at_, stopped_at + std::chrono::milliseconds(kContinueMs));
}

void HostProcess::SayAlive() {
  const auto now = std::chrono::steady_clock::now();
  if (!remote_ || ended_ || now - said_alive_ < kAlivePeriod) return;
  said_alive_ = now;
  Send({{"alive", true}});
}

void HostProcess::Receive() {
  if (ended_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now > kill_at_ || (now > kill_if_stopped_at_ && IsStopped(pid_.value))) KillTree(pid_.value);
  if (line_.Receive()) return;
  ended_ = true;
  if (line_.IsTooLong())
    refused_ = fmt::format("it sent a line above {}", HumanBytes(kMaxLineBytes));
}

void HostProcess::Refuse(const std::string& why) {
  ended_ = true;
  refused_ = why;
}

std::optional<Json> HostProcess::Next() {
  while (const std::optional<std::string> line = line_.NextLine()) {
    Json message = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
    greeted_ = greeted_ || message.is_object();
    if (message.is_object()) return message;
    // A shell on the host may print other text first.
    other_text_bytes_ += line->size() + 1;
    if (!ended_ && other_text_bytes_ > kMostOtherTextBytes)
      Refuse("it sends text without end; expected a command that reaches the host, as ssh does");
  }
  return std::nullopt;
}

int HostProcess::Collect() {
  if (pid_.value < 0) return exit_code_;
  kill(pid_.value, SIGCONT);
  const UniqueFd process = OpenProcess(pid_.value);
  const bool kills = !refused_.empty() || (process && !EndsByItself(pid_.value, process.get()));
  if (kills) KillTree(pid_.value);
  int status = 0;
  while (waitpid(pid_.value, &status, 0) < 0 && errno == EINTR) {
  }
  pid_.value = -1;
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (kills) exit_code_ = 1;  // The signal says nothing of what the ranks did.
  return exit_code_;
}

std::string HostProcess::WhyNoReport() const {
  if (!refused_.empty()) return refused_;
  if (!remote_) return "dsat: the supervisor of the ranks ended without a report";
  // Opened again, because the command shares the file offset of the descriptor.
  std::string said =
      LastLine(ReadEnd(fmt::format("/proc/self/fd/{}", errors_.get()), kErrorEndBytes));
  const bool errors_are_empty = said.empty();
  if (errors_are_empty) said = fmt::format("the connection ended (exit code {})", exit_code_);
  const bool is_of_dsat = errors_are_empty || said.find(binary_) != std::string::npos;
  if (exit_code_ == kExitNotRunnable && is_of_dsat)
    said += fmt::format(" (expected dsat there at {}, as on this host)", binary_);
  return said;
}

}  // namespace dsat
