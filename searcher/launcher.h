// Launching: one trial is a set of rank processes under one supervisor process.
//
//   runner ──posix_spawn──► dsat supervise (one per attempt) ──fork──► rank 0 .. rank P-1
//
// The supervisor is single-threaded and a child subreaper in a session of its own. It ends every
// process below it when a rank ends badly, when it is told to stop, and when the pipe to the runner
// closes (Ctrl-C, kill -9): no process is ever orphaned.
#ifndef DSAT_SEARCHER_LAUNCHER_H_
#define DSAT_SEARCHER_LAUNCHER_H_

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// One launch to make.
struct LaunchRequest {
  ExperimentId experiment = 0;
  TrialId trial = 0;
  int64_t attempt = 0;
  TrialKind kind = TrialKind::kSearch;
  bool full_run = false;      // The production run: train to the end, measure nothing.
  Json ds_config;             // What to run.
  std::string dir;            // Folder of this attempt: configs and logs; exists and is writable.
  std::string report_address; // gRPC target of the runner's TrialService.
  std::string token;
};

// What the ranks run: one command per rank, with its environment on top of ours.
struct RankCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::string log_path;  // stdout and stderr of this rank.
};

// How the processes of one attempt ended.
struct ExitReport {
  int first_failed_rank = -1;  // -1: every rank exited with 0.
  int exit_code = 0;           // Of that rank; 128 + signal if it was killed.
  bool killed_by_us = false;   // Stopped by the runner (time-out, cancel).
  std::string log_tail;        // Last lines of that rank's log, or of rank 0's.
};

// What runs a trial: dsat's own engine or the user's own command. The one place where they differ.
class LaunchTarget {
 public:
  virtual ~LaunchTarget() = default;
  // Writes the attempt's files into request.dir and gives the commands, one per rank.
  virtual std::vector<RankCommand> Prepare(const LaunchRequest& request) = 0;
  // Looks for results that arrive as files while the ranks run; called a few times a second. Gives
  // what is new: a measurement, a profile, or progress. Default: nothing (they come by gRPC).
  virtual std::optional<PointResult> PollMeasurement(const LaunchRequest& request);
  virtual std::optional<ModelProfile> PollProfile(const LaunchRequest& request);
  // A number that grows while the ranks make progress (optimizer steps seen), for the hang time-out.
  virtual int64_t PollProgress(const LaunchRequest& request);
  // The outcome from the exit alone, for an attempt that has reported none itself.
  virtual Outcome Classify(const LaunchRequest& request, const ExitReport& exit) = 0;
};

// dsat's own engine: one dsat-trial process per rank. `trial_binary` is its path.
std::unique_ptr<LaunchTarget> MakeBuiltinTarget(const ExperimentSpec& spec,
                                                const std::string& trial_binary);
// The user's own command with DeepSpeed's autotuning hooks (docs/external.md).
std::unique_ptr<LaunchTarget> MakeCommandTarget(const ExperimentSpec& spec);

// A running supervisor and the ranks below it. Destroying it ends them all.
class SupervisedProcess {
 public:
  // Starts `<dsat_binary> supervise` with the ranks' commands. Throws if it cannot be started.
  static SupervisedProcess Start(const std::string& dsat_binary,
                                 const std::vector<RankCommand>& ranks, const std::string& work_dir);
  SupervisedProcess(SupervisedProcess&&) noexcept;
  SupervisedProcess& operator=(SupervisedProcess&&) noexcept;
  ~SupervisedProcess();

  // A file descriptor that becomes readable when Poll has news.
  int fd() const;
  // The exit report once everything below the supervisor has ended; nullopt before. Does not block.
  std::optional<ExitReport> Poll();
  // Asks for the end: SIGTERM to the ranks, SIGKILL after the grace time. Returns at once.
  void Stop(std::chrono::milliseconds grace);

 private:
  struct Impl;
  explicit SupervisedProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// main() of the `dsat supervise` process: reads the commands from `control_fd`, runs them, writes the
// report to it. Returns the exit code. POSIX: pidfds, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG.
int SuperviseMain(int control_fd);

}  // namespace dsat

#endif  // DSAT_SEARCHER_LAUNCHER_H_
