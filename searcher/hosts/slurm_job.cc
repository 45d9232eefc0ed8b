// A job of Slurm for one attempt.
#include "searcher/hosts/slurm_job.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file_lock.h"
#include "base/files.h"
#include "base/regex.h"
#include "searcher/hosts/slots.h"
#include "searcher/processes/spawn.h"

namespace dsat {
namespace {

using Clock = std::chrono::steady_clock;

// Ends when the lock file $0 has been removed, and when nobody has held its lock for $1 seconds.
constexpr char kAwaitRelease[] = R"(exec 9<"$0" || exit
left=$1
while [ "$0" -ef /dev/fd/9 ]; do
  if flock --nonblock --shared 9; then
    flock --unlock 9
    [ "$left" -gt 0 ] || exit
    left=$((left - 1))
    sleep 1
  else
    flock --shared 9 && flock --unlock 9 || exit
    left=$1
  fi
done)";

// Runs salloc until the job is released, also while it is queued; once it runs, the job's command
// ends by itself, too. Only SIGHUP ends a salloc that waits for a command which another of its
// threads has already seen end: it spins. The words are the lock file, the seconds, kAwaitRelease
// and the arguments of salloc. All but those who await the release keep standard error open, which
// is the locked log.
constexpr char kHoldJob[] = R"(lock=$0 keep=$1 await=$2
shift 2
salloc "$@" </dev/null >&2 &
job=$!
{ /bin/sh -c "$await" "$lock" "$keep"; kill -HUP "$job"; } >/dev/null 2>&1 &
watch=$!
wait "$job"
kill "$watch" 2>/dev/null)";

constexpr std::chrono::seconds kReleaseLimit{10};
constexpr std::chrono::seconds kStepsLimit{30};  // For the steps of an ended process to end.
constexpr std::chrono::milliseconds kStepsPause{500};

// Waits until no process has the log open that keeps the job. False if that is not so within
// kReleaseLimit after its release: a controller that does not answer must not hold up a search; the
// shell goes on.
bool WaitForEnd(const std::string& log, Clock::time_point released_at) {
  while (FileLock::IsHeld(log)) {
    if (Clock::now() > released_at + kReleaseLimit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

FileLock LockJob(const std::string& path) {
  return FileLock::Acquire(path, path + ": the job of this trial is that of");
}

// A new file that is locked for as long as it is open, also by processes that inherit it.
UniqueFd NewLog(const std::string& path, const std::string& first_line) {
  unlink(path.c_str());  // Whoever still has the old one open keeps it.
  UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
  const std::string line = first_line + "\n";
  const auto size = static_cast<ssize_t>(line.size());
  if (!log || flock(log.get(), LOCK_EX) != 0 || write(log.get(), line.data(), line.size()) != size)
    ThrowErrno(path, errno);
  return log;
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

struct SlurmJob::Impl {
  std::string log;
  std::optional<FileLock> lock;
  pid_t pid = -1;         // -1: an ended process has started it.
  size_t num_heard = 0;   // The bytes of the log that have been read.
  std::string said = {};  // The first error of salloc, or else its last line.
  bool said_error = false;
  Clock::time_point released_at = {};
  std::vector<Host> nodes = {};  // Until they are reached.
  Clock::time_point steps_limit = {};
  Clock::time_point next_look = {};  // At the steps of an ended process.
  std::optional<HostReacher> reacher = {};
};

SlurmJob::SlurmJob(const SlurmJobs& jobs, const std::string& name, const std::string& dsat_binary,
                   const std::string& path)
    : jobs_(jobs), dsat_binary_(dsat_binary), impl_(new Impl{path + ".log", {}}) {
  const std::string lock = path + ".lock", keep = std::to_string(jobs.keep.count());
  std::vector<std::string> words = {"--job-name=" + name};
  words.insert(words.end(), jobs.args.begin(), jobs.args.end());
  std::string request = "salloc";
  for (const std::string& word : words)
    request += " " + ShellWord(Printable(word));
  // Whoever gives a job back removes the file; the job may end later.
  const bool was_left = std::filesystem::exists(lock);
  impl_->lock = LockJob(lock);
  if (FileLock::IsHeld(impl_->log)) {
    if (was_left && FirstLine(ReadFile(impl_->log)) == request) return;
    impl_->lock.reset();
    WaitForEnd(impl_->log, Clock::now());
    impl_->lock = LockJob(lock);
  }
  const UniqueFd log = NewLog(impl_->log, request);
  const std::string hold = fmt::format("{}; {}", kPrintNodes, kAwaitRelease);
  words.insert(words.begin(), {"/bin/sh", "-c", kHoldJob, lock, keep, kAwaitRelease});
  words.insert(words.end(), {"--kill-command=TERM", "/bin/sh", "-c", hold, lock, keep});
  impl_->pid = Spawn(std::move(words), log.get(), "/bin/sh, to run salloc").pid;
}

SlurmJob::~SlurmJob() {
  impl_->reacher.reset();
  Release();
  if (!WaitForEnd(impl_->log, impl_->released_at) || impl_->pid < 0) return;
  while (waitpid(impl_->pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool SlurmJob::taken_up() const {
  return impl_->pid < 0;
}

void SlurmJob::Release() {
  if (!impl_->lock) return;
  impl_->lock.reset();
  impl_->released_at = Clock::now();
}

// Whether the ranks that an ended process has started in the job are gone, or do not end.
bool SlurmJob::StepsEnded() {
  const Clock::time_point now = Clock::now();
  if (now < impl_->next_look) return false;
  impl_->next_look = now + kStepsPause;
  return now > impl_->steps_limit || !HasSteps(number_);
}

void SlurmJob::Hear(const std::string& line) {
  static const RE2 kNumber("^salloc: (Pending|Granted) job allocation ([0-9]{1,18})\\b",
                           RegexOptions());
  std::string state;
  if (RE2::PartialMatch(line, kNumber, &state, &number_)) queued_ = state == "Pending";
  SlurmNodes nodes = ParseNodes(line);
  if (nodes.hosts.empty()) {
    const std::string said = Trimmed(line);
    if (!said.empty() && !impl_->said_error) impl_->said = said;
    static const RE2 kError("^salloc: (error|fatal|unrecognized option|invalid option)\\b",
                            RegexOptions());
    impl_->said_error = impl_->said_error || RE2::PartialMatch(said, kError);
    return;
  }
  number_ = nodes.job;
  queued_ = false;
  impl_->nodes = std::move(nodes.hosts);
  impl_->steps_limit = Clock::now() + kStepsLimit;
}

void SlurmJob::HearLog() {
  const std::string log = ReadFile(impl_->log);
  for (size_t end; (end = log.find('\n', impl_->num_heard)) != std::string::npos;) {
    Hear(log.substr(impl_->num_heard, end - impl_->num_heard));
    impl_->num_heard = end + 1;
  }
}

std::optional<std::vector<LaunchHost>> SlurmJob::Poll() {
  const bool is_held = FileLock::IsHeld(impl_->log);
  HearLog();
  if (!is_held) {
    impl_->reacher.reset();  // The job ends when the nodes need not answer.
    const std::string why = number_.empty() ? "" : WhySlurmEnded(number_);
    Throw(ErrorCode::kUnavailable, "{}",
          why.empty() ? fmt::format("Slurm gives no job: {}", impl_->said)
                      : fmt::format("{}: {}", why, impl_->said));
  }
  if (!impl_->nodes.empty() && (!taken_up() || StepsEnded())) {
    HostAccess access = jobs_.access;
    access.slurm_job = number_;
    impl_->reacher.emplace(std::exchange(impl_->nodes, {}), access, dsat_binary_);
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
