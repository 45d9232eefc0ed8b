// Launches the ranks of an attempt and reads their results: the interface of dsat's own engine and
// of the user's command, which differ only here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "proto/trial.h"
#include "proto/trial_task.h"
#include "searcher/processes/exit_report.h"
#include "searcher/processes/launch_host.h"
#include "searcher/processes/rank_command.h"

namespace dsat {

// One attempt of a trial, or a full training run.
struct LaunchRequest {
  ExperimentId experiment = 0;
  TrialId trial = 0;
  int64_t attempt = 0;
  TrialKind kind = TrialKind::kSearch;
  double give_up_below = 0;       // As Trial's.
  int64_t steps = 0;              // The steps of a soak trial.
  bool full_run = false;          // Train to the end and measure nothing.
  TrainingOptions training = {};  // Used by a full run of the built-in engine.
  TraceTask trace = {};           // Used by a full run of the built-in engine.
  Json ds_config;                 // The configuration to run.
  std::string dir;         // Folder of this attempt for configs and logs; exists and is writable.
  std::string shared_dir;  // Folder that all attempts of the experiment share (compiled
                           // extensions); "" = the parent of `dir`.
  std::vector<LaunchHost> hosts = {{}};
  std::vector<Slot> slots;  // One per rank, those of a host together; empty = not pinned, on this
                            // machine.
  std::string report_address;  // gRPC target of the runner's TrialService, and
  std::string report_key;      // the key for it; "" on one machine.
  std::string token;           // The secret with which ranks on several hosts find each other.
};

// The folder of a soak trial's checkpoints, which serve no other purpose than to be saved. It
// belongs to the trial, so that the next attempt removes what a killed one has left.
inline std::string SoakCheckpointDir(const LaunchRequest& request) {
  return (std::filesystem::absolute(request.dir).parent_path() / "checkpoint").string();
}

// The results that have arrived as files since the last look.
struct AttemptNews {
  std::optional<PointResult> measured;
  std::optional<ModelProfile> profile;
  // A number that grows while the ranks make progress (optimizer steps), for the hang time-out.
  int64_t progress = 0;
};

// Used by one thread. For an attempt, Prepare is called first, and Classify, if at all, last.
class LaunchTarget {
 public:
  virtual ~LaunchTarget() = default;
  // Writes the attempt's files to request.dir and returns the commands, one per rank.
  virtual std::vector<RankCommand> Prepare(const LaunchRequest& request) = 0;
  // Reads what arrives as files while the ranks run; called a few times a second. By default
  // nothing: results arrive by gRPC. When all `have_exited`, the ranks will write no more.
  virtual AttemptNews Poll(const LaunchRequest& /*request*/, bool /*have_exited*/) { return {}; }
  // The outcome of an attempt that has reported none itself, from its exit codes and files.
  virtual Outcome Classify(const LaunchRequest& request, const ExitReport& exit) = 0;
};

// dsat's own engine as a launch target. Runs one dsat-trial process per rank, which reports by
// gRPC. `trial_binary` is the program's path.
std::unique_ptr<LaunchTarget> MakeBuiltinTarget(const ExperimentSpec& spec,
                                                const std::string& trial_binary);

}  // namespace dsat
