// One experiment's search as a pure state machine around a method.
//
// Trial 0 is the profiling trial (none if the spec brings a profile). If the model does not fit as
// submitted, further profiling trials need less memory. Then comes the submitted configuration,
// then what the method proposes, the confirmation (searcher/search/confirm.h), and at last the runs
// that prove the pick (searcher/search/proof.h). A search has no clock and no threads: the same
// events give the same trials, so that recovery is replay. A replay takes the recorded predictions
// of configurations (profiler/predictor.h) and does not predict again.
#ifndef DSAT_SEARCHER_SEARCH_SEARCH_H_
#define DSAT_SEARCHER_SEARCH_SEARCH_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "methods/method.h"
#include "profiler/predictor.h"
#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/search/confirm.h"
#include "searcher/search/proof.h"

namespace dsat {

// What the log has of an ask.
struct RecordedAsk {
  TrialKind kind = TrialKind::kSearch;
  std::vector<Refusal> refused;  // The proposals that were refused before the trial.
  std::optional<ProofRun> proof = std::nullopt;  // If the trial is one.
  std::optional<TrialId> confirms = std::nullopt;
};

// What a search has found, beyond its measurements.
struct Findings {
  std::vector<TrialId> finalists;  // The best configurations in the method's opinion, best first.
  Conclusion conclusion;           // Its finalists are tags of the method.
  std::map<TrialId, double> speeds = {};  // conclusion.speeds by trial.
};

class Search {
 public:
  // Throws kInvalidArgument if an option is out of range (ValidateOptions), the method is unknown,
  // or the submitted ds_config breaks a rule.
  // `predictor` replaces that of MakePredictor: a simulated machine has its own.
  explicit Search(ExperimentSpec spec, std::unique_ptr<Predictor> predictor = nullptr);
  ~Search();
  Search(Search&&) noexcept;

  // The next trial to run, in state kRunning, or nullopt if there is none now. There are at most
  // max_trials besides those that run again (RunsAgain), max_concurrent_trials at once, and
  // max_slots in use. A trial that runs again runs alone. A proposal of the method is
  // refused if an exact prediction says that it does not fit: the method is told that it is
  // infeasible, and it does not count as a trial. In a replay, `recorded` is what the log has of
  // this ask. Throws what MakePredictor throws.
  std::optional<Trial> Ask(const RecordedAsk* recorded = nullptr);
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
            const std::optional<SearchSpace>& space = std::nullopt, TrialTimes times = {});

  // The process of a running trial has measured another point, the last one of `points`. Returns
  // the next point to measure in it; nullopt to end it, as always for a user's command, which
  // measures only one. Called once for every point. Throws as Tell.
  std::optional<Point> Measured(TrialId id, const std::vector<PointResult>& points);
  // Whether the trial's configuration is predicted exactly to fit at another point.
  bool Fits(TrialId id, const Point& point);

  // Asks the method for no more trials: only the first rounds of the confirmation are left. A
  // confirmation that has begun is not extended, and no soak is longer than the comparison of
  // losses needs.
  void EndSearch(const std::string& reason);
  // Whether EndSearch would change anything: it was not called, and either the method may ask for
  // more trials, or the confirmation may be extended, or a soak may follow.
  bool MayGoOn() const;
  // Why, "" if EndSearch has not been called.
  const std::string& EndReason() const;
  // Changes the limits of a search that may have ended; what is not given stays. The method
  // continues if it has more to propose, and the confirmation is made anew.
  void RaiseLimits(const LimitsRaised& limits);

  // No trial is running and none will come. Throws as Ask.
  bool Finished() const;
  // Set once Finished: why the experiment counts as failed, because the profiling trial did not
  // succeed, no trial after it did, or each that did has dropped out. "" if it does not count as
  // failed.
  std::string FailureReason() const;

  const ExperimentSpec& spec() const;
  const std::map<TrialId, Trial>& trials() const;
  std::vector<TrialId> Running() const;
  // The trial with the best metric so far; trials that run again and profiling excluded; ties keep
  // the first. It is the luckiest of many measurements: a result is a verdict
  // (searcher/search/verdict.h).
  std::optional<TrialId> Best() const;
  // The trial of the submitted configuration, if it exists yet.
  std::optional<TrialId> Submitted() const;
  // Why there is no such trial: the profiling trial did not fit as submitted. "" if it fit.
  const std::string& SubmittedMisfit() const;
  Findings Find() const;
  // The probability that no configuration of the space is more than 1 % faster than that of a trial
  // that has succeeded; nullopt if the method does not know.
  std::optional<double> ProbabilityNearBest(TrialId pick) const;
  // What bounds the speed of such a trial, one line; "" if the method does not know.
  std::string BoundOf(TrialId pick) const;
  // The config of a trial, with the batch sizes of its best point if it has one.
  Json BestConfigOf(TrialId id) const;
  // The first trial that was asked for after the submitted configuration has ended; 0 before.
  TrialId FirstAfterSubmitted() const;
  // The trials whose configuration a later run has shown to be no answer, each with the reason
  // (searcher/search/confirm.h).
  std::map<TrialId, std::string> Dropped() const;
  // nullptr before the confirmation starts, and if there is none.
  const Confirmation* confirmation() const;
  // The slot-seconds that trials have used, from their recorded times.
  double SlotSeconds() const;
  // Set once the profile is known.
  const std::optional<SearchSpace>& space() const;
  const std::optional<ModelProfile>& profile() const;

 private:
  void LookAhead(const RecordedAsk* recorded) const;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SEARCH_SEARCH_H_
