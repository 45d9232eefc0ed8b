// A job of Slurm for one attempt.
#include "searcher/hosts/slurm_job.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/error.h"
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

}  // namespace

SlurmJob::SlurmJob(const SlurmJobs& jobs, const std::string& name, const std::string& dsat_binary,
                   const std::string& path)
    : jobs_(jobs), dsat_binary_(dsat_binary), log_(path + ".log") {
  const std::string lock = path + ".lock", keep = std::to_string(jobs.keep.count());
  std::vector<std::string> words = {"--job-name=" + name};
  words.insert(words.end(), jobs.args.begin(), jobs.args.end());
  std::string request = "salloc";
  for (const std::string& word : words)
    request += " " + ShellWord(Printable(word));
  // Whoever gives a job back removes the file; the job may end later.
  const bool was_left = std::filesystem::exists(lock);
  lock_ = LockJob(lock);
  if (FileLock::IsHeld(log_)) {
    if (was_left && ReadFile(log_).starts_with(request + "\n")) return;
    lock_.reset();
    WaitForEnd(log_, Clock::now());
    lock_ = LockJob(lock);
  }
  const UniqueFd log = NewLog(log_, request);
  const std::string hold = fmt::format("{}; {}", kPrintNodes, kAwaitRelease);
  words.insert(words.begin(), {"/bin/sh", "-c", kHoldJob, lock, keep, kAwaitRelease});
  words.insert(words.end(), {"--kill-command=TERM", "/bin/sh", "-c", hold, lock, keep});
  pid_ = Spawn(std::move(words), log.get(), "/bin/sh, to run salloc").pid;
}

SlurmJob::~SlurmJob() {
  reacher_.reset();
  Release();
  if (!WaitForEnd(log_, released_at_) || pid_ < 0) return;
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void SlurmJob::Release() {
  if (!lock_) return;
  lock_.reset();
  released_at_ = Clock::now();
}

// Whether the ranks that an ended process has started in the job are gone, or do not end.
bool SlurmJob::StepsEnded() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kStepsPause;
  return now > steps_limit_ || !HasSteps(number_);
}

void SlurmJob::Hear(const std::string& line) {
  static const RE2 kNumber("^salloc: (Pending|Granted) job allocation ([0-9]{1,18})\\b",
                           RegexOptions());
  std::string state;
  if (RE2::PartialMatch(line, kNumber, &state, &number_)) queued_ = state == "Pending";
  SlurmNodes nodes = ParseNodes(line);
  if (nodes.hosts.empty()) {
    const std::string said = Trimmed(line);
    if (!said.empty() && !said_error_) said_ = said;
    static const RE2 kError("^salloc: (error|fatal|unrecognized option|invalid option)\\b",
                            RegexOptions());
    said_error_ = said_error_ || RE2::PartialMatch(said, kError);
    return;
  }
  number_ = nodes.job;
  queued_ = false;
  nodes_ = std::move(nodes.hosts);
  steps_limit_ = Clock::now() + kStepsLimit;
}

void SlurmJob::HearLog() {
  const std::string log = ReadFile(log_);
  for (size_t end; (end = log.find('\n', num_heard_)) != std::string::npos;) {
    Hear(log.substr(num_heard_, end - num_heard_));
    num_heard_ = end + 1;
  }
}

std::optional<std::vector<LaunchHost>> SlurmJob::Poll() {
  const bool is_held = FileLock::IsHeld(log_);
  HearLog();
  if (!is_held) {
    reacher_.reset();  // The job ends when the nodes need not answer.
    const std::string why = number_.empty() ? "" : WhySlurmEnded(number_);
    Throw(ErrorCode::kUnavailable, "{}",
          why.empty() ? fmt::format("Slurm gives no job: {}", said_)
                      : fmt::format("{}: {}", why, said_));
  }
  if (!nodes_.empty() && (!taken_up() || StepsEnded())) {
    HostAccess access = jobs_.access;
    access.slurm_job = number_;
    reacher_.emplace(std::exchange(nodes_, {}), access, dsat_binary_);
  }
  if (!reacher_) return std::nullopt;
  std::optional<ReachedHosts> reached = reacher_->Poll(std::chrono::milliseconds(0));
  if (!reached) return std::nullopt;
  reacher_.reset();
  CountDevicesAsSlots(jobs_.slots_per_node, &reached->hosts);
  if (FindSlots(reached->hosts, {}, slots_per_trial()).empty()) {
    Throw(ErrorCode::kUnavailable, "job {} of Slurm has fewer slots than the {} of a trial",
          number_, slots_per_trial());
  }
  CheckHosts(jobs_.spec, reached->hosts);
  return std::move(reached->hosts);
}

}  // namespace dsat
