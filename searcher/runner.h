// The search runner: asks for trials, launches them and tells their results until the search is
// finished.
//
// Its control loop first restarts the trials that ran when the last process died. Then it asks for
// and starts trials while there are free slots, and else waits for an event and tells. gRPC threads
// only push to a queue; all state belongs to the loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "db/store.h"
#include "proto/trial_task.h"
#include "searcher/hosts/reach_hosts.h"
#include "searcher/hosts/slurm.h"
#include "searcher/search/experiment.h"

namespace dsat {

struct RunnerOptions {
  std::string dsat_binary;                  // For `dsat supervise`.
  std::string trial_binary;                 // dsat-trial.
  std::string out_dir;                      // Folder for ds_config.json, metrics.json and trials/.
  int64_t num_slots = 0;                    // Slots of this machine; 0 = its GPUs or its cores.
  std::chrono::seconds hang_timeout{120};   // Without progress, after the first step.
  std::chrono::seconds start_timeout{300};  // Until the first report.
  std::chrono::seconds trial_timeout{3600};
  // For a full training of the built-in engine; checkpoint_interval 0 = a tenth of all steps.
  TrainingOptions training = {};
  TraceTask trace = {};        // Likewise; its path is absolute and writable.
  ReachedHosts machines = {};  // Hosts of the ranks; if empty, this machine.
  // If given, each attempt gets a job of Slurm, and `machines` is the result of PlanJobs.
  std::optional<SlurmJobs> jobs = {};
};

// An event for a watcher such as the progress display, which is called on the loop's thread.
struct RunnerEvent {
  enum class Kind {
    kTrialStarted,   // An attempt has been launched.
    kTrialProgress,  // Its ranks have reached another step.
    kTrialEnded,     // The trial has ended. text: the reason, "" if it succeeded.
    kProfiled,       // The profiling trial has succeeded; the search space is known.
    kNote,           // text: a note for the user, such as that a trial is tried again.
  } kind;
  TrialId trial = -1;
  int64_t attempt = 0;  // kTrialStarted: the number of the attempt.
  int64_t step = 0;
  std::string text = {};
};
using RunnerWatcher = std::function<void(const Experiment&, const RunnerEvent&)>;

class Runner {
 public:
  // Locks `experiment`, which must outlive the runner, until Run returns, and reads new events.
  // Throws kFailedPrecondition if another runner has locked it.
  Runner(Experiment& experiment, RunnerOptions options, RunnerWatcher watcher);
  ~Runner();

  // Runs until the search has finished or is canceled. Writes the best config to out_dir whenever
  // it changes, and at the end. Returns the experiment's state, which is kActive if it was canceled
  // (it can be resumed). Throws before anything is launched or recorded if out_dir is not writable,
  // is in use, or has the results of another experiment. A later error (the disk is full, the
  // database is gone) stops all trials and is then thrown with advice on how to continue. REQUIRES:
  // called once.
  ExperimentState Run();

  // Ends the running trials and makes Run return; a second call kills them at once.
  // Async-signal-safe and thread-safe.
  void Cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat
