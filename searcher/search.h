// One experiment's search as a pure state machine around a method.
//
// Trial 0 is the profiling trial (none if the spec brings a profile), the next one the submitted
// configuration, the rest is the method's. No clock, no threads: the same events give the same
// trials, so that recovery is replay. What is predicted of a configuration (profiler/predictor.h)
// is given back by a replay as it was recorded, and is not predicted again.
#ifndef DSAT_SEARCHER_SEARCH_H_
#define DSAT_SEARCHER_SEARCH_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// The outcome of a trial that is told: a success without the searched metric, or without a model
// profile if it is the profiling trial, is a failure.
Outcome CheckedOutcome(const Trial& trial, const Outcome& outcome, const std::string& metric);

class Search {
 public:
  // Throws kInvalidArgument if an option is out of range (ValidateOptions), the method is unknown,
  // or the submitted ds_config breaks a rule.
  explicit Search(ExperimentSpec spec);
  ~Search();
  Search(Search&&) noexcept;

  // The next trial to run, in state kRunning, or nullopt if there is none now. Never more than
  // max_trials in all, max_concurrent_trials at once, or max_slots in use. A proposal of the method
  // that is predicted, and exactly, not to fit is told to it as infeasible and uses up no trial.
  // `recorded`: what was so refused before this trial, when it is asked for in a replay. Throws
  // what MakePredictor throws.
  std::optional<Trial> Ask(const std::vector<Refusal>* recorded = nullptr);
  // What was refused on the way to the last trial that Ask gave.
  const std::vector<Refusal>& LastRefused() const;
  // How many proposals were refused in all.
  int64_t NumRefused() const;

  // The search space that `profile` leads to. Throws what MakePredictor throws.
  SearchSpace SpaceFor(const ModelProfile& profile) const;

  // A running trial has ended with `outcome`. `points` are its measurements (non-empty if it
  // succeeded), `profile` what the profiling trial learned. A success without the metric that is
  // searched, or of a profiling trial without a profile, is recorded as failed. Throws kNotFound if
  // there is no such trial, kFailedPrecondition if it is not running. `space` is what is searched
  // from a profile on; nullopt: the one that the formulas give.
  void Tell(TrialId id, const Outcome& outcome, std::vector<PointResult> points,
            std::optional<ModelProfile> profile,
            const std::optional<SearchSpace>& space = std::nullopt);

  // No trial is running and none will come. Throws as Ask.
  bool Finished() const;
  // Set once Finished: why the experiment counts as failed ("" if it does not): the profiling trial
  // did not succeed, or no trial after it did.
  std::string FailureReason() const;

  const ExperimentSpec& spec() const;
  const std::map<TrialId, Trial>& trials() const;
  std::vector<TrialId> Running() const;
  // The trial with the best metric so far; profiling trial excluded; ties keep the first.
  std::optional<TrialId> Best() const;
  // The trial of the submitted configuration, if it exists yet.
  std::optional<TrialId> Submitted() const;
  // Set once the profile is known.
  const std::optional<SearchSpace>& space() const;
  const std::optional<ModelProfile>& profile() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SEARCH_H_
