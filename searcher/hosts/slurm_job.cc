// A job of Slurm for one attempt.
#include "searcher/hosts/slurm_job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <regex>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "searcher/hosts/placement.h"
#include "searcher/processes/process_tree.h"
#include "searcher/processes/spawn.h"
#include "searcher/processes/supervise_wire.h"

namespace dsat {
namespace {

// Its arguments are those of salloc. A shell that waits beside salloc ends it when the socket
// closes, also while the job is queued; once it runs, the job's command ends by itself, too. Only
// SIGHUP ends a salloc that waits for a command which another of its threads has already seen end:
// it spins. What salloc says then is lost, which must not end it first.
constexpr char kHoldJob[] = R"(trap '' PIPE
exec 2>&1 3<&0
salloc "$@" <&3 &
job=$!
{ read -r _ <&3; kill -HUP "$job"; } 2>/dev/null &
watch=$!
wait "$job"
kill "$watch" 2>/dev/null)";
constexpr int kReleaseLimitMs = 10'000;

}  // namespace

struct SlurmJob::Impl {
  pid_t pid;
  LineChannel line;
  std::string said = {};  // The last line of salloc.
  std::optional<HostReacher> reacher = {};
};

SlurmJob::SlurmJob(const SlurmJobs& jobs, const std::string& name, const std::string& dsat_binary)
    : jobs_(jobs), dsat_binary_(dsat_binary) {
  std::vector<std::string> words = {"/bin/sh", "-c", kHoldJob, "sh", "--job-name=" + name};
  words.insert(words.end(), jobs.args.begin(), jobs.args.end());
  const std::string hold = std::string(kPrintNodes) + "; exec cat >/dev/null";
  words.insert(words.end(), {"--kill-command=TERM", "/bin/sh", "-c", hold});
  Spawned spawned = Spawn(std::move(words), -1, "/bin/sh, to run salloc");
  impl_.reset(new Impl{spawned.pid, LineChannel(std::move(spawned.socket))});
}

SlurmJob::~SlurmJob() {
  impl_->reacher.reset();
  Release();
  const UniqueFd process = OpenProcess(impl_->pid);
  pollfd end = {process.get(), POLLIN, 0};
  // A controller that does not answer must not hold up a search; the shell goes on.
  if (process && poll(&end, 1, kReleaseLimitMs) == 0) return;
  while (waitpid(impl_->pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void SlurmJob::Release() {
  impl_->line.Close();
}

void SlurmJob::Hear(const std::string& line) {
  static const std::regex kNumber("^salloc: (Pending|Granted) job allocation ([0-9]+)");
  std::smatch match;
  if (std::regex_search(line, match, kNumber)) {
    number_ = match[2];
    queued_ = match[1] == "Pending";
  }
  const SlurmNodes nodes = ParseNodes(line);
  if (nodes.hosts.empty()) {
    if (!Trimmed(line).empty()) impl_->said = Trimmed(line);
    return;
  }
  HostAccess access = jobs_.access;
  access.slurm_job = number_ = nodes.job;
  queued_ = false;
  impl_->reacher.emplace(nodes.hosts, access, dsat_binary_);
}

std::optional<std::vector<LaunchHost>> SlurmJob::Poll() {
  const bool connected = impl_->line.Receive();
  while (const std::optional<std::string> line = impl_->line.NextLine())
    Hear(*line);
  if (!connected) {
    impl_->reacher.reset();  // The job ends when the nodes need not answer.
    const std::string why = number_.empty() ? "" : WhySlurmEnded(number_);
    Throw(ErrorCode::kUnavailable, "{}",
          why.empty() ? fmt::format("Slurm gives no job: {}", impl_->said)
                      : fmt::format("{}: {}", why, impl_->said));
  }
  if (!impl_->reacher) return std::nullopt;
  std::optional<ReachedHosts> reached = impl_->reacher->Poll(std::chrono::milliseconds(0));
  if (!reached) return std::nullopt;
  impl_->reacher.reset();
  CountDevicesAsSlots(jobs_.slots_per_node, &reached->hosts);
  if (FindSlots(reached->hosts, {}, slots_per_trial()).empty()) {
    Throw(ErrorCode::kUnavailable, "job {} of Slurm has fewer slots than the {} of a trial",
          number_, slots_per_trial());
  }
  CheckHosts(jobs_.spec, reached->hosts);
  return std::move(reached->hosts);
}

}  // namespace dsat
