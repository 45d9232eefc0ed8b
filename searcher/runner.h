// The search runner: asks, launches, listens, tells, until the search is finished.
//
// The control loop: restart what ran when the last process died; then, while there is a free slot,
// ask and start; else wait for an event and tell. gRPC threads and file watchers only push onto one
// queue; all state belongs to the loop's thread.
#ifndef DSAT_SEARCHER_RUNNER_H_
#define DSAT_SEARCHER_RUNNER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "db/store.h"
#include "proto/trial_task.h"
#include "searcher/experiment.h"
#include "searcher/hosts/reach_hosts.h"

namespace dsat {

struct RunnerOptions {
  std::string dsat_binary;                  // For `dsat supervise`.
  std::string trial_binary;                 // dsat-trial.
  std::string out_dir;                      // ds_config.json, metrics.json and trials/ go here.
  int64_t num_slots = 0;                    // Slots of this machine; 0 = its GPUs or its cores.
  std::chrono::seconds hang_timeout{120};   // Without progress, counted from the first step on.
  std::chrono::seconds start_timeout{300};  // Without a first sign of life.
  std::chrono::seconds trial_timeout{3600};
  // Steps of a full training between two checkpoints; 0 = a tenth of all.
  int64_t checkpoint_interval = 0;
  int64_t eval_interval = 0;   // Of a full training of the built-in engine; 0: none.
  TraceTask trace = {};        // The same; its path is absolute, and writable.
  ReachedHosts machines = {};  // Where ranks are started; without hosts, on this machine.
};

// What a watcher (the progress display) is told; called on the loop's thread.
struct RunnerEvent {
  enum class Kind {
    kTrialStarted,   // An attempt was launched.
    kTrialProgress,  // Its ranks are at another step.
    kTrialEnded,     // The trial is told. text: the reason, "" if it succeeded
    kProfiled,       // The profiling trial succeeded; the search space is known.
    kNote,           // text: something a person should know (an attempt is tried again)
  } kind;
  TrialId trial = -1;
  int64_t attempt = 0;
  int64_t step = 0;
  std::string text;
};
using RunnerWatcher = std::function<void(const Experiment&, const RunnerEvent&)>;

class Runner {
 public:
  // Takes `experiment`, which must outlive the runner, until Run returns, and brings it up to date.
  // Throws kFailedPrecondition if another runner has it.
  Runner(Experiment& experiment, RunnerOptions options, RunnerWatcher watcher);
  ~Runner();

  // Runs until the search has finished or was cancelled. Writes the best config to out_dir whenever
  // there is a better one, and at the end. Returns the experiment's state: kActive if it was
  // cancelled (it can be resumed). Throws before anything is launched or recorded if out_dir cannot
  // be written to. An error later on (the disk is full, the database is gone) stops every trial,
  // then is thrown with what to do about it. REQUIRES: called once.
  ExperimentState Run();

  // Ends the running trials and makes Run return; a second call gives them no time to end by
  // themselves. Async-signal-safe, and may be called from any thread.
  void Cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_RUNNER_H_
