// One experiment's search as a pure state machine around a method.
//
// A search is a list of phases (searcher/search/phases.h): the profiling trial (none if the spec
// brings a profile), the submitted configuration, what the method proposes, the confirmation
// (searcher/search/confirm.h), and at last the runs that prove the pick (searcher/search/phases.h).
// A search has no clock and no threads: the same events give the same trials, so that recovery is
// replay. A proposal of the method that needs no trial is an event like others, and what was
// predicted for it is in the event, so that a replay does not predict again. Nor does it decide
// again where that takes long (Method::Replay).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/search/phases.h"
#include "searcher/search/search_state.h"

namespace dsat {

// The outcome that is recorded for a trial: a success without the searched metric, or without a
// model profile if it is the profiling trial, is a failure.
Outcome CheckedOutcome(const Trial& trial, const Outcome& outcome, const std::string& metric);

class Search {
 public:
  // Throws kInvalidArgument if an option is out of range (ValidateOptions), the method is unknown,
  // or the submitted ds_config breaks a rule.
  // `predictor` replaces that of MakePredictor: a simulated machine has its own.
  explicit Search(ExperimentSpec spec, std::unique_ptr<Predictor> predictor = nullptr);

  // The next trial to run, in state kRunning, or nullopt if there is none now. There are at most
  // max_trials besides those that run again (RunsAgain), max_concurrent_trials at once, and
  // max_slots in use. A trial that runs again runs alone. It is Settle and then Start. Throws as
  // Settle.
  std::optional<Trial> Ask();
  // Answers the next proposals of the method, up to one that needs a trial, and returns the
  // answers. No trial is needed if the configuration breaks a rule, if an exact prediction says
  // that it does not fit, or if an equal one has run or runs (searcher/search/proposer.h). Throws
  // what MakePredictor throws; what was answered until then stays answered.
  std::vector<Answered> Settle();
  // Answers the next proposal of the method as recorded, without a prediction. Returns false, and
  // does nothing, if the next proposal is another one or cannot have had this answer.
  bool Answer(const Answered& recorded);
  // Starts the next trial, which is `recorded` in a replay. REQUIRES, except in a replay: Settle
  // was called, and nothing since.
  std::optional<Trial> Start(const Trial* recorded = nullptr);

  // The search space that `profile` leads to. Throws what MakePredictor throws.
  SearchSpace SpaceFor(const ModelProfile& profile) const;

  // A running trial has ended with `outcome`. `points` are its measurements (non-empty if it
  // succeeded), `profile` what the profiling trial learned. A success without the metric that is
  // searched, or of a profiling trial without a profile, is recorded as failed. `space` is the
  // search space that follows from a profile; nullopt means the space that the formulas give.
  // Throws kInvalidArgument if the outcome is that it runs. REQUIRES: the trial is running.
  void Tell(TrialId id, const Outcome& outcome, std::vector<PointResult> points,
            std::optional<ModelProfile> profile,
            const std::optional<SearchSpace>& space = std::nullopt, TrialTimes times = {});

  // The process of a running trial has measured another point, the last one of `points`. Returns
  // the next point to measure in it; nullopt to end it, as always for a user's command, which
  // measures only one, and for a trial that `has_ended` since, in a replay. Called once for every
  // point. REQUIRES: as Tell.
  std::optional<Point> Measured(TrialId id, const std::vector<PointResult>& points,
                                bool has_ended = false);
  // Whether the trial's configuration is predicted exactly to fit at another point.
  bool Fits(TrialId id, const Point& point);

  // Asks the method for no more trials: only the proof of the best configurations is left.
  void EndSearch(const std::string& reason);
  // Whether EndSearch would change anything: it was not called, and the method may ask for more.
  bool MayGoOn() const;
  // Why, "" if EndSearch has not been called.
  const std::string& EndReason() const { return state_->end_reason; }
  // Changes the limits of a search that may have ended; what is not given stays. The method
  // continues if it has more to propose, and the confirmation is made anew. If only rounds are
  // given, the method does not continue, and the confirmation gets those that are missing.
  void RaiseLimits(const LimitsRaised& limits);

  bool IsIdle() const { return state_->running.empty(); }  // No trial is running.
  // No trial is running and none will come. A search that Settle has not been called for since its
  // last event may not know yet.
  bool Finished() const;
  // Set once Finished: why the experiment counts as failed, because the profiling trial did not
  // succeed, no trial after it did, or each that did has dropped out. "" if it does not count as
  // failed.
  std::string FailureReason() const;

  // The knowledge of the search. The functions below read it, as the members of SearchState.
  operator const SearchState&() const { return *state_; }  // NOLINT(google-explicit-constructor)
  const ExperimentSpec& spec() const { return state_->spec; }
  const std::map<TrialId, Trial>& trials() const { return state_->trials; }
  std::vector<TrialId> Running() const { return {state_->running.begin(), state_->running.end()}; }
  std::optional<TrialId> Best() const { return state_->Best(); }
  // The trial of the submitted configuration, if it exists yet.
  std::optional<TrialId> Submitted() const { return state_->submitted; }
  TrialId FirstAfterSubmitted() const { return state_->first_after_submitted; }
  std::string SubmittedMisfit() const { return state_->SubmittedMisfit(); }
  Findings Find() const { return state_->Find(); }
  Json BestConfigOf(TrialId id) const { return state_->BestConfigOf(id); }
  std::map<TrialId, std::string> Dropped() const { return state_->Dropped(); }
  double SlotSeconds() const { return state_->SlotSeconds(); }
  const std::optional<SearchSpace>& space() const { return state_->space; }
  const std::optional<ModelProfile>& profile() const { return state_->profile; }
  // nullptr before the confirmation starts, and if there is none.
  const Confirmation* confirmation() const {
    return state_->confirmation ? &*state_->confirmation : nullptr;
  }
  // How many configurations were not tried because they are predicted not to fit.
  int64_t NumRefused() const { return state_->proposer ? state_->proposer->num_misfits() : 0; }

 private:
  void LookAhead(const Recorded* recorded = nullptr) const;
  void LookAheadIfIdle() const;
  void HasChanged();
  Trial& RunningTrial(TrialId id);

  std::unique_ptr<SearchState> state_;
  std::vector<std::unique_ptr<Phase>> phases_;
  // The trial that comes next as things stand, if it was looked for.
  mutable std::optional<Trial> next_;
  mutable bool has_looked_ = false;
};

}  // namespace dsat
