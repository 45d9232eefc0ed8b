// One launch of one trial: its processes, its clocks, what its ranks have said, and how it ended.
#ifndef DSAT_SEARCHER_ATTEMPT_H_
#define DSAT_SEARCHER_ATTEMPT_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/launch/launch_target.h"
#include "searcher/processes/supervised_process.h"

namespace dsat {

// How long an attempt may take; what takes longer is killed and has failed.
struct AttemptLimits {
  std::optional<std::chrono::milliseconds> start;  // To the first sign of life.
  std::optional<std::chrono::milliseconds> hang;   // From one sign of life to the next.
  std::optional<std::chrono::milliseconds> total;
};

// What arrived as files.
struct AttemptNews {
  std::optional<PointResult> measured;
  std::optional<ModelProfile> profile;
};

struct AttemptEnd {
  Outcome outcome;  // kStopped: cancelled.
  std::string log_tail;
};

// Not thread-safe. Destroying it ends its processes.
class Attempt {
 public:
  // Launches. `target` must outlive the attempt. Throws as LaunchTarget::Prepare and
  // SupervisedProcess::Start.
  Attempt(const std::string& dsat_binary, LaunchTarget* target, const LaunchRequest& request,
          const AttemptLimits& limits);

  const LaunchRequest& request() const { return request_; }
  // Readable when Observe may have news.
  int fd() const { return process_.fd(); }
  // The last optimizer step heard of, if it is another than at the last call.
  std::optional<int64_t> NewStep();

  // What its ranks say. The profiling trial has done its work with a profile, any other with a
  // point.
  void OnProgress(int64_t step);
  void OnMeasured(bool point, bool profile);
  void OnInfeasible(int64_t rank, const std::string& reason);

  // Ends it without blame: SIGTERM now, SIGKILL after `grace`.
  void Cancel(std::chrono::milliseconds grace);

  // Looks for the exit first and for files second, so that nothing written before the exit is
  // missed. Does not block.
  AttemptNews Observe();

  // Kills what has run out of time; the end, once an Observe has seen every process end.
  std::optional<AttemptEnd> End();

 private:
  using Clock = std::chrono::steady_clock;

  std::string OverdueReason(Clock::time_point now) const;
  void KillIfOverdue();
  Outcome Decide();

  LaunchTarget* target_;
  LaunchRequest request_;
  AttemptLimits limits_;
  SupervisedProcess process_;

  Clock::time_point started_ = Clock::now();
  Clock::time_point last_sign_ = started_;
  bool heard_ = false;  // There was a sign of life.
  int64_t step_ = 0;
  int64_t shown_step_ = 0;
  int64_t polled_progress_ = 0;
  std::optional<Clock::time_point> done_;  // When it had delivered what it was launched for.
  std::optional<std::string> infeasible_;
  bool cancelled_ = false;
  std::optional<ExitReport> exit_;
  std::optional<std::string> overdue_;  // Why it was killed; "" if it was done and did not exit.
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_ATTEMPT_H_
