// Launching: one trial is a set of rank processes under one supervisor process.
//
//   runner ──posix_spawn──► dsat supervise (one per attempt) ──fork──► rank 0 .. rank P-1
//
// The supervisor is single-threaded and a child subreaper in a session of its own. It ends every
// process below it when a rank ends badly, when it is told to stop, and when the line to the runner
// closes (Ctrl-C, kill -9): no process is ever orphaned. If the supervisor itself is killed, the
// kernel kills the ranks.
//
// Ranks on several hosts have a supervisor on each, and the line to it is ssh's:
//
//   runner ──posix_spawn──► ssh worker-1 ──network──► dsat supervise ──fork──► rank 4 .. rank 7
//
// A rank that ends badly on one host ends those on the others; so does a line that breaks.
#ifndef DSAT_SEARCHER_LAUNCH_LAUNCHER_H_
#define DSAT_SEARCHER_LAUNCH_LAUNCHER_H_

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/num_cores.h"
#include "proto/experiment.h"
#include "proto/trial.h"
#include "proto/trial_task.h"

namespace dsat {

// A machine that ranks run on; by default, this one.
struct LaunchHost {
  std::string name = "localhost";
  std::vector<std::string> reach = {};  // The command that runs a shell's command line there, given
                                        // as one more argument; empty = this machine.
  std::vector<int64_t> slots = {};      // Device indices that trials may use.
  std::string address = "127.0.0.1";    // Where the other hosts reach it.
  int64_t num_cores = NumCores();
  std::map<std::string, std::string> environment = {};  // Of its ranks, below their own.
};

// One slot of a host.
struct Slot {
  int64_t host = 0;   // Index of LaunchRequest::hosts.
  int64_t index = 0;  // Of the device.
  auto operator<=>(const Slot&) const = default;
};

// One launch to make.
struct LaunchRequest {
  ExperimentId experiment = 0;
  TrialId trial = 0;
  int64_t attempt = 0;
  TrialKind kind = TrialKind::kSearch;
  bool full_run = false;            // The production run: train to the end, measure nothing.
  int64_t checkpoint_interval = 0;  // Of a full run: steps from one checkpoint to the next,
  int64_t eval_interval = 0;        // and from one validation to the next.
  TraceTask trace = {};             // Of a full run of the built-in engine.
  Json ds_config;                   // What to run.
  std::string dir;         // Folder of this attempt: configs and logs; exists and is writable.
  std::string shared_dir;  // Folder that all attempts of the experiment share (compiled
                           // extensions); "" = the parent of `dir`.
  std::vector<LaunchHost> hosts = {{}};  // Where slots are.
  std::vector<Slot> slots;     // That this attempt may use, one per rank, those of a host together;
                               // empty = not pinned, on this machine.
  std::string report_address;  // gRPC target of the runner's TrialService.
  std::string token;
};

// What the ranks run: one command per rank, with its environment on top of ours.
struct RankCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::string log_path;  // stdout and stderr of this rank; replaced if it exists.
  std::string work_dir;  // Where it starts; "" = where SupervisedProcess::Start says.
  // If not empty: each line of the log that contains this text is appended to StampsPath(log_path)
  // as "<nanoseconds of the monotonic clock> <line>" when it arrives.
  std::string stamp_marker;
  int64_t host = 0;  // Index of the hosts that SupervisedProcess::Start is given.
  std::vector<std::string> files = {};  // Below the attempt's folder, that it reads: another host
                                        // that does not share the folder gets copies.
  bool shares_folder = false;           // What it leaves there is needed here.
};

// Where the stamped lines of a log are kept.
std::string StampsPath(const std::string& log_path);

// How the processes of one attempt ended.
struct ExitReport {
  int first_failed_rank = -1;  // The first that ended badly by itself; -1: none did.
  int exit_code = 0;           // Of that rank; 128 + signal if it was killed, 127 if not runnable.
  bool killed_by_us = false;   // Stopped by the runner (time-out, cancel) before any rank failed.
  int64_t oom_kills = 0;       // Processes that the kernel ended meanwhile for lack of host memory,
                               // in our cgroup, or on this host if the cgroup does not tell.
  std::vector<int> exit_codes{};         // By rank, as exit_code; empty if the supervisor was lost.
  std::chrono::milliseconds elapsed{0};  // From the first fork to the end of the last process.
  std::string log_tail{};                // Last lines of that rank's log, or of rank 0's.
};

// What runs a trial: dsat's own engine or the user's own command. The one place where they differ.
// Used from one thread. Of an attempt's calls Prepare is the first, and Classify, if it comes, the
// last.
class LaunchTarget {
 public:
  virtual ~LaunchTarget() = default;
  // Writes the attempt's files into request.dir and gives the commands, one per rank.
  virtual std::vector<RankCommand> Prepare(const LaunchRequest& request) = 0;
  // Looks for results that arrive as files while the ranks run; called a few times a second. Gives
  // what is new: a measurement, a profile, or progress. Default: nothing (they come by gRPC).
  virtual std::optional<PointResult> PollMeasurement(const LaunchRequest& request);
  virtual std::optional<ModelProfile> PollProfile(const LaunchRequest& request);
  // A number that grows while the ranks make progress (optimizer steps seen), for the hang
  // time-out.
  virtual int64_t PollProgress(const LaunchRequest& request);
  // The outcome from the exit and the files, for an attempt that has reported none itself.
  virtual Outcome Classify(const LaunchRequest& request, const ExitReport& exit) = 0;
};

// The launch target of `spec`; throws as the two below.
std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary);
// dsat's own engine: one dsat-trial process per rank. `trial_binary` is its path.
std::unique_ptr<LaunchTarget> MakeBuiltinTarget(const ExperimentSpec& spec,
                                                const std::string& trial_binary);
// The user's own command with DeepSpeed's autotuning hooks (docs/external.md). Throws
// kInvalidArgument if the entrypoint names no DeepSpeed config file that could be replaced, starts
// another number of ranks than slots_per_trial, or the profiled steps are not start < end.
std::unique_ptr<LaunchTarget> MakeCommandTarget(const ExperimentSpec& spec);

// How long processes get to end by themselves before they are made to.
struct GraceTimes {
  std::chrono::milliseconds siblings{
      2000};  // After a rank ended badly, before SIGTERM to the rest.
  std::chrono::milliseconds terminate{2000};  // After SIGTERM, before SIGKILL.
  // Of the runner's silence, before a supervisor on another host takes it for gone: a line may be
  // cut where neither end can see it.
  std::chrono::milliseconds silence{60'000};
};

// A running supervisor and the ranks below it. Destroying it kills them all and waits for their
// end. Each object is used by one thread at a time; Start may be called from a process with many
// threads.
class SupervisedProcess {
 public:
  // Starts `<dsat_binary> supervise` on every host that has a rank, with the commands of its ranks,
  // each run in `work_dir`, an absolute path. On a host that
  // does not share `work_dir`, a folder of its own takes its place while the ranks run: paths below
  // it in commands and logs are changed, and the logs come back. Throws if a supervisor, or the
  // command that reaches its host, cannot be started; a rank that cannot be started, and a host
  // that cannot be reached, is a failed rank of the report. REQUIRES: `ranks` is not empty.
  static SupervisedProcess Start(const std::string& dsat_binary,
                                 const std::vector<RankCommand>& ranks, const std::string& work_dir,
                                 const GraceTimes& grace = {},
                                 const std::vector<LaunchHost>& hosts = {{}});
  SupervisedProcess(SupervisedProcess&&) noexcept;
  SupervisedProcess& operator=(SupervisedProcess&&) noexcept;
  ~SupervisedProcess();

  // A file descriptor that becomes readable when Poll has news.
  int fd() const;
  // The exit report once everything below the supervisors has ended; nullopt before. Does not
  // block. Called at least every few seconds, so that supervisors on other hosts know that we live.
  // Gives the same report when called again.
  std::optional<ExitReport> Poll();
  // Asks for the end: SIGTERM to the ranks, SIGKILL after the grace time. Returns at once. A second
  // call can shorten the grace time, not lengthen it.
  void Stop(std::chrono::milliseconds grace);

 private:
  struct Impl;
  explicit SupervisedProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// main() of the `dsat supervise` process: reads the commands from standard input, runs them, writes
// the report to standard output. Returns the exit code. Linux: PR_SET_CHILD_SUBREAPER,
// PR_SET_PDEATHSIG, pidfds. REQUIRES: the process has one thread.
int SuperviseMain();

}  // namespace dsat

#endif  // DSAT_SEARCHER_LAUNCH_LAUNCHER_H_
