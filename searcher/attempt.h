// One launch of a trial: its processes, its time limits, the reports of its ranks and its outcome.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/hosts/slurm_job.h"
#include "searcher/launch/launch_target.h"
#include "searcher/processes/supervised_process.h"

namespace dsat {

// How often the files and the limits of attempts are looked at.
inline constexpr int kLookEveryMs = 200;
// The time that a canceled attempt has to end by itself.
inline constexpr std::chrono::seconds kCancelGrace{5};

// The time limits of an attempt. An attempt that exceeds one is killed and has failed.
struct AttemptLimits {
  std::optional<std::chrono::milliseconds> start;  // Until the first report.
  std::optional<std::chrono::milliseconds> hang;   // Between two reports of progress.
  std::optional<std::chrono::milliseconds> total;
};

struct AttemptEnd {
  Outcome outcome;  // kStopped: canceled.
  std::string log_tail;
  bool heard = false;      // Whether there was a report.
  int64_t lost_host = -1;  // An index of the hosts, if this one started nothing.
};

// The pause after so many failed attempts in a row, 1 s to 32 s: what was short, such as memory of
// the host or space on a disk, may be there again.
std::chrono::seconds PauseAfter(int64_t num_failed);

// Not thread-safe. The destructor ends its processes.
class Attempt {
 public:
  // Launches the attempt on the hosts of `request` or, with `jobs`, requests a job of Slurm, on
  // whose nodes Observe launches it; the time limits begin then. `target` must outlive it. Throws
  // as LaunchTarget::Prepare and SupervisedProcess::Start.
  Attempt(const std::string& dsat_binary, LaunchTarget* target, const LaunchRequest& request,
          const AttemptLimits& limits, const std::optional<SlurmJobs>& jobs = std::nullopt);

  const LaunchRequest& request() const { return request_; }
  // Whether its processes have been started.
  bool started() const { return process_.has_value(); }
  // "waits in Slurm's queue as job 12" and the like, once; "" before and after.
  std::string NewsOfJob();
  // Readable when Observe may have new results; -1 until it has started.
  int fd() const { return process_ ? process_->fd() : -1; }
  // The last reported optimizer step, if it has changed since the last call.
  std::optional<int64_t> NewStep();

  // The reports of its ranks. A profiling trial is done after a profile, any other trial after a
  // point that no other point follows (`more`). An error after the first point does not make the
  // trial a failure.
  void OnProgress(int64_t step);
  void OnMeasured(bool point, bool profile, bool more = false);
  void OnInfeasible(int64_t rank, const std::string& reason);

  // Stops it, which is not a failure: SIGTERM now, SIGKILL after `grace`.
  void Cancel(std::chrono::milliseconds grace);

  // Checks for the exit first and for files second, so that files written before the exit are not
  // missed. Does not block. Throws as the constructor if it launches the attempt.
  AttemptNews Observe();

  // Kills the attempt if it has exceeded a limit. Returns the end after Observe has seen all
  // processes end.
  std::optional<AttemptEnd> End();

 private:
  using Clock = std::chrono::steady_clock;

  void Launch();
  void AwaitJob();
  std::string OverdueReason(Clock::time_point now) const;
  void KillIfOverdue();
  Outcome Decide();

  std::string dsat_binary_;
  LaunchTarget* target_;
  LaunchRequest request_;
  AttemptLimits limits_;
  std::unique_ptr<SlurmJob> job_;  // Null if it runs on given hosts.
  bool told_job_ = false;
  std::optional<SupervisedProcess> process_;  // Destroyed before its job.

  Clock::time_point started_ = Clock::now();
  Clock::time_point last_sign_ = started_;
  Clock::time_point looked_ = started_;  // At the clock, for the last time.
  bool heard_ = false;                   // There has been a report.
  int64_t step_ = 0;
  int64_t shown_step_ = 0;
  int64_t polled_progress_ = 0;
  bool has_result_ = false;
  std::optional<Clock::time_point> done_;  // When it had delivered all of its results.
  std::optional<std::string> infeasible_;
  std::string no_job_;  // Why it got no job.
  bool canceled_ = false;
  std::optional<ExitReport> exit_;
  std::optional<std::string> overdue_;  // Why it was killed; "" if it was done and did not exit.
};

// The launch target of `spec`, from MakeBuiltinTarget or MakeCommandTarget.
std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary);

}  // namespace dsat
