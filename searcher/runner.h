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
#include "searcher/experiment.h"

namespace dsat {

struct RunnerOptions {
  std::string dsat_binary;   // For `dsat supervise`.
  std::string trial_binary;  // dsat-trial.
  std::string out_dir;       // ds_config.json, metrics.json and trials/ go here.
  int64_t num_slots = 0;     // Slots of this machine; 0 = as many as fit its cores.
  std::chrono::seconds hang_timeout{120};   // Without progress, counted from the first step on.
  std::chrono::seconds start_timeout{300};  // Without a first sign of life.
  std::chrono::seconds trial_timeout{3600};
};

// What a watcher (the progress display) is told; called on the loop's thread.
struct RunnerEvent {
  enum class Kind { kTrialStarted, kTrialProgress, kTrialEnded, kProfiled, kNote } kind;
  TrialId trial = -1;
  int64_t attempt = 0;
  int64_t step = 0;
  std::string text;
};
using RunnerWatcher = std::function<void(const Experiment&, const RunnerEvent&)>;

class Runner {
 public:
  // `experiment` must outlive the runner.
  Runner(Experiment& experiment, RunnerOptions options, RunnerWatcher watcher);
  ~Runner();

  // Runs until the search has finished or was cancelled. On the way out writes the best config so
  // far to out_dir. Returns the experiment's state: kActive if it was cancelled (it can be resumed).
  ExperimentState Run();

  // Ends the running trials and makes Run return. Async-signal-safe, so that a handler may call it.
  void Cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs one full training with `ds_config` by the same launcher (dsat train, --run-full-experiment).
// Progress goes to `on_progress(step, loss, latency_ms)`.
Outcome RunFullTraining(const ExperimentSpec& spec, const Json& ds_config,
                        const RunnerOptions& options,
                        const std::function<void(int64_t, double, double)>& on_progress,
                        const std::function<bool()>& cancelled);

}  // namespace dsat

#endif  // DSAT_SEARCHER_RUNNER_H_
