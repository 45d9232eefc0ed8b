// One experiment's search as a pure state machine around a method.
//
// Trial 0 is the profiling trial (none if the spec brings a profile), the next one the submitted
// configuration, and the method proposes all others. A search has no clock and no threads: the same
// events give the same trials, so that recovery is replay. A replay takes the recorded predictions
// of configurations (profiler/predictor.h) and does not predict again.
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

// The outcome that is recorded for a trial: a success without the searched metric, or without a
// model profile if it is the profiling trial, is a failure.
Outcome CheckedOutcome(const Trial& trial, const Outcome& outcome, const std::string& metric);

class Search {
 public:
  // Throws kInvalidArgument if an option is out of range (ValidateOptions), the method is unknown,
  // or the submitted ds_config breaks a rule.
  explicit Search(ExperimentSpec spec);
  ~Search();
  Search(Search&&) noexcept;

  // The next trial to run, in state kRunning, or nullopt if there is none now. There are at most
  // max_trials in all, max_concurrent_trials at once, and max_slots in use. A proposal of the
  // method is refused if an exact prediction says that it does not fit: the method is told that it
  // is infeasible, and it does not count as a trial. In a replay, `recorded` are the proposals that
  // were refused before this trial. Throws what MakePredictor throws.
  std::optional<Trial> Ask(const std::vector<Refusal>* recorded = nullptr);
  // The proposals that were refused before the last trial that Ask returned.
  const std::vector<Refusal>& LastRefused() const;
  // How many proposals were refused in all.
  int64_t NumRefused() const;

  // The search space that `profile` leads to. Throws what MakePredictor throws.
  SearchSpace SpaceFor(const ModelProfile& profile) const;

  // A running trial has ended with `outcome`. `points` are its measurements (non-empty if it
  // succeeded), `profile` what the profiling trial learned. A success without the metric that is
  // searched, or of a profiling trial without a profile, is recorded as failed. Throws kNotFound if
  // there is no such trial, kFailedPrecondition if it is not running. `space` is the search space
  // that follows from a profile; nullopt means the space that the formulas give.
  void Tell(TrialId id, const Outcome& outcome, std::vector<PointResult> points,
            std::optional<ModelProfile> profile,
            const std::optional<SearchSpace>& space = std::nullopt);

  // No trial is running and none will come. Throws as Ask.
  bool Finished() const;
  // Set once Finished: why the experiment counts as failed, either because the profiling trial did
  // not succeed or because no trial after it did. "" if it does not count as failed.
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
