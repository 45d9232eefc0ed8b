// Launches the ranks of an attempt and reads their results: the interface of dsat's own engine and
// of the user's command, which differ only here.
#ifndef DSAT_SEARCHER_LAUNCH_LAUNCH_TARGET_H_
#define DSAT_SEARCHER_LAUNCH_LAUNCH_TARGET_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/trial.h"
#include "searcher/launch/launch_request.h"
#include "searcher/processes/exit_report.h"
#include "searcher/processes/rank_command.h"

namespace dsat {

// Used by one thread. For an attempt, Prepare is called first, and Classify, if at all, last.
class LaunchTarget {
 public:
  virtual ~LaunchTarget() = default;
  // Writes the attempt's files to request.dir and returns the commands, one per rank.
  virtual std::vector<RankCommand> Prepare(const LaunchRequest& request) = 0;
  // Reads the results that arrive as files while the ranks run; called a few times a second.
  // Returns a new measurement or profile, or nullopt. By default nullopt: results arrive by gRPC.
  // When all `have_exited`, the ranks will write no further results.
  virtual std::optional<PointResult> PollMeasurement(const LaunchRequest& /*request*/,
                                                     bool /*have_exited*/) {
    return std::nullopt;
  }
  virtual std::optional<ModelProfile> PollProfile(const LaunchRequest& /*request*/) {
    return std::nullopt;
  }
  // A number that grows while the ranks make progress (optimizer steps), for the hang time-out.
  virtual int64_t PollProgress(const LaunchRequest& /*request*/) { return 0; }
  // The outcome of an attempt that has reported none itself, from its exit codes and files.
  virtual Outcome Classify(const LaunchRequest& request, const ExitReport& exit) = 0;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_LAUNCH_LAUNCH_TARGET_H_
