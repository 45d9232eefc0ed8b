// A request to launch one attempt of a trial, or a full training run.
#ifndef DSAT_SEARCHER_LAUNCH_LAUNCH_REQUEST_H_
#define DSAT_SEARCHER_LAUNCH_LAUNCH_REQUEST_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/trial.h"
#include "proto/trial_task.h"
#include "searcher/processes/launch_host.h"

namespace dsat {

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

}  // namespace dsat

#endif  // DSAT_SEARCHER_LAUNCH_LAUNCH_REQUEST_H_
