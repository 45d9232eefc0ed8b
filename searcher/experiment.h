// A search tied to its log: every ask and tell is in the database before anyone acts on it.
//
// The one door to an experiment for the runner, for `dsat ask` / `dsat tell` and for the gRPC
// service. Opening replays the log and compares each replayed ask with the recorded one.
#ifndef DSAT_SEARCHER_EXPERIMENT_H_
#define DSAT_SEARCHER_EXPERIMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "db/store.h"
#include "proto/trial.h"
#include "searcher/search.h"

namespace dsat {

// Not thread-safe.
class Experiment {
 public:
  // Records a new experiment. Throws kInvalidArgument if the spec contradicts itself.
  static Experiment Create(Store& store, const ExperimentSpec& spec);
  // Replays the log. Throws kDataLoss naming the trial if the replay diverges from the record (the
  // method has changed since, or the log is damaged). `store` must outlive the experiment.
  static Experiment Open(Store& store, ExperimentId id);

  ExperimentId id() const { return id_; }
  const Search& search() const { return search_; }
  ExperimentState state() const { return state_; }

  // As Search, logged first. If another process has appended, its events are replayed and the call
  // is made again.
  std::optional<Trial> Ask();
  void Tell(TrialId id, const Outcome& outcome);
  // Tell of an executor outside dsat: records its measurements as the only attempt's, then tells.
  void TellExternal(TrialId id, const Outcome& outcome, const std::vector<PointResult>& points,
                    const std::optional<ModelProfile>& profile);

  // Attempts (launches) of running trials.
  int64_t StartAttempt(TrialId id, const std::string& log_dir);  // Returns the attempt's number.
  void RecordMeasured(TrialId id, int64_t attempt, const PointResult& result,
                      const std::optional<ModelProfile>& profile);
  void EndAttempt(TrialId id, int64_t attempt, const Outcome& outcome, const std::string& log_tail);
  // Attempts of a trial that have started; of them, those that ended.
  int64_t NumAttempts(TrialId id) const;

  // Marks the experiment completed, failed or stopped, once.
  void SetState(ExperimentState state, const std::string& reason);

 private:
  Experiment(Store& store, ExperimentId id, Search search);
  void Apply(const Event& event);
  void CatchUp();
  template <typename MakeEvents>
  void Commit(const MakeEvents& make_events);

  struct Attempt {
    std::vector<PointResult> points;
    std::optional<ModelProfile> profile;
  };

  Store* store_;
  ExperimentId id_;
  Search search_;
  ExperimentState state_ = ExperimentState::kActive;
  int64_t last_seq_ = 0;
  std::map<TrialId, std::vector<Attempt>> attempts_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_EXPERIMENT_H_
