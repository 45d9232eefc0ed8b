// A search with its log: every ask and tell is in the database before anyone acts on it.
//
// The runner, `dsat ask` / `dsat tell` and the gRPC service use experiments through this class.
// Opening replays the log and compares each replayed ask with the recorded one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "db/store.h"
#include "proto/trial.h"
#include "searcher/search/search.h"

namespace dsat {

// Not thread-safe. Every call that writes first replays what other processes have appended. Besides
// the errors that they name, calls throw as Store::Append; nothing is recorded then, and the call
// may be repeated.
class Experiment {
 public:
  // Throws what Create throws for a spec that contradicts itself, so that no database is created
  // for it.
  static void Check(const ExperimentSpec& spec);
  // Records a new experiment, with its prior if options.warm_start asks for one. Throws
  // kInvalidArgument if the spec contradicts itself, and as FindPrior
  // (searcher/search/warm_start.h).
  static Experiment Create(Store& store, const ExperimentSpec& spec);
  // Replays the log. Throws kNotFound if there is no such experiment, kDataLoss naming the trial
  // and the first difference if the replay diverges from the record (the method has changed since,
  // or the log is damaged). `store` must outlive the experiment.
  static Experiment Open(Store& store, ExperimentId id) { return Experiment(store, id); }

  ExperimentId id() const { return id_; }
  const Store& store() const { return *store_; }
  // Uses another connection to the same database from now on. `store` must outlive the experiment
  // or the next such call.
  void Use(Store& store) { store_ = &store; }
  // As of the last call that wrote. References into it live until the next such call.
  const Search& search() const { return *search_; }
  ExperimentState state() const { return state_; }
  // Why it failed or was stopped, "" otherwise.
  const std::string& reason() const { return reason_; }

  // Replays what other processes have appended since the last call that wrote. Throws as Open.
  void CatchUp();

  // Whether the calls that follow hold back what they append, until Flush appends it in one commit.
  // For the only process that appends, which does not act on a call before. `false` flushes. Flush
  // throws kAborted if another process has appended.
  void HoldBack(bool holds_back) {
    holds_back_ = holds_back;
    if (!holds_back) Flush();
  }
  void Flush();

  // As Search, logged first. If another process has appended, its events are replayed and the call
  // is made again. Ask gives nothing once the experiment has ended (SetState).
  std::optional<Trial> Ask() { return Advance(true); }
  // Tells with what the last attempt measured. A success that lacks what it was run for (the
  // searched metric or, if it is the profiling trial, the model profile) is recorded as failed, and
  // a soak that does not train like the submitted configuration (searcher/search/loss_check.h) as
  // infeasible. Throws kNotFound if there is no such trial, kFailedPrecondition if it has ended.
  void Tell(TrialId id, const Outcome& outcome, const TrialTimes& times = {});
  // Tell of an executor outside dsat: records its measurements as an attempt's, then tells. Throws
  // as Tell, and kInvalidArgument if a success lacks what it was run for.
  void TellExternal(TrialId id, const Outcome& outcome, const std::vector<PointResult>& points,
                    const std::optional<ModelProfile>& profile);

  // Attempts (launches) of running trials, numbered from 0. Starting one ends the previous attempt
  // as stopped if it is open. The calls throw as Tell, kFailedPrecondition if `attempt` is not the
  // last one or has ended, and kInvalidArgument if a measurement is not finite or negative.
  int64_t StartAttempt(TrialId id, const std::string& log_dir);  // Returns the attempt's number.
  void RecordMeasured(TrialId id, int64_t attempt, const std::optional<PointResult>& result,
                      const std::optional<ModelProfile>& profile);
  void EndAttempt(TrialId id, int64_t attempt, const Outcome& outcome, const std::string& log_tail);
  // Attempts of a trial that have started.
  int64_t NumAttempts(TrialId id) const;
  int64_t NumFailedAttempts(TrialId id) const;  // The part of NumAttempts that has failed.

  // The log's content about one attempt.
  struct Attempt {
    std::vector<PointResult> points;
    std::optional<ModelProfile> profile;
    std::optional<Outcome> end;  // nullopt: it runs, or its runner died.
  };
  // The attempts of a trial by number; empty if none has started.
  std::vector<Attempt> Attempts(TrialId id) const;

  // The point to measure next in the process of a running trial, which has just measured one;
  // nullopt to end it.
  std::optional<Point> NextPoint(TrialId id) const;
  // Whether it is predicted to fit.
  bool Fits(TrialId id, const Point& point) { return search_->Fits(id, point); }

  // As Search.
  void EndSearch(const std::string& reason);
  // Also makes an experiment active again that has ended.
  void RaiseLimits(const LimitsRaised& limits);

  // Marks the experiment completed, failed or stopped, once. Throws kFailedPrecondition if it has
  // ended otherwise before; the same state again does nothing.
  void SetState(ExperimentState state, const std::string& reason);
  // Marks an active experiment completed, or failed with the reason, if its search has finished.
  // Called after every tell. Returns true if the search or the experiment has ended. Throws as
  // SetState.
  bool FinishIfDone();

 private:
  Experiment(Store& store, ExperimentId id) : store_(&store), id_(id) { CatchUp(); }
  std::optional<Trial> Advance(bool starts);
  void Apply(const Event& event, bool has_ended);
  void ApplyAsked(const Event& event);
  void ApplyTold(const Event& event);
  // Appends what `make_events()` gives for the current state, then applies it.
  template <typename MakeEvents>
  void Commit(const MakeEvents& make_events);
  bool Append(std::span<const Event> events);

  const Trial& RunningTrial(TrialId id) const;
  Attempt& OpenAttempt(TrialId id, int64_t attempt);
  std::vector<Event> StartEvents(TrialId id, const std::string& log_dir) const;
  std::optional<double> KnownFlopsPerSample() const;
  PointResult WithFlops(const PointResult& point, std::optional<double>& flops) const;
  Outcome Checked(const Trial& trial, const Outcome& outcome, const Attempt& measured) const;
  std::optional<SearchSpace> SpaceAfter(const Trial& trial, const Outcome& outcome,
                                        const Attempt& measured) const;

  Store* store_;
  ExperimentId id_;
  std::optional<Search> search_;  // Always set; rebuilt in place by a new replay.
  ExperimentState state_ = ExperimentState::kActive;
  std::string reason_;
  int64_t last_seq_ = 0;     // With what is held back.
  std::vector<Event> held_;  // The last events up to last_seq_, which the log does not have yet.
  bool holds_back_ = false;
  std::map<TrialId, std::vector<Attempt>> attempts_;
  std::optional<double> measured_flops_;  // Per sample and rank, of the first measurement.
  std::map<TrialId, Point> next_points_;  // The next points of running trials.
  bool needs_replay_ = true;              // search_ is not what the log up to last_seq_ says.
};

}  // namespace dsat
