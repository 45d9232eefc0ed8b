// random: tries each random configuration a few times with micro-batch sizes drawn from a range
// around the best size of its stage.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "methods/lineage.h"
#include "methods/method.h"

namespace dsat {

class RandomMethod : public Method {
 public:
  RandomMethod(const SearchSpace& space, const SearchOptions& options) : table_(space, options) {}

  // Continues lineages in the order in which their trials ended. Starts a new lineage in place of
  // one that should stop, and if none waits. Always nullopt after early_stopping.
  std::optional<Proposal> Ask() override;
  void Tell(int64_t tag, const Trial& finished) override;
  // Counts for early_stopping only.
  void Observe(const Trial& finished) override;

  // True if the lineage gets no more trials: it has had trials_per_random_config, its lowest size
  // was too large, or the stage is known to hold its whole range; or if SearchPolicy::prune_stages
  // excludes its stage. REQUIRES: the lineage is idle and has a trial.
  bool ShouldStop(const Lineage& lineage) const;

  const LineageTable& table() const { return table_; }

 private:
  // The results of the trials of one place.
  struct StageRecord {
    std::optional<double> best_metric;
    Step best;  // The step of the best trial.
  };

  int64_t Weight(const StageSpace& stage) const;
  bool StageOneOrTwoSucceeded() const;
  const StageRecord& RecordOf(const StageSpace& place) const;
  Step DrawStep(int64_t low, int64_t high) const;
  Step FirstStep(const StageSpace& stage) const;
  Step NextStep(const Lineage& lineage) const;
  // `metric`: nullopt if the trial was not measured.
  void CountTowardsEarlyStop(const Trial& finished, const std::optional<double>& metric);
  bool EarlyStopped() const;

  LineageTable table_;
  std::deque<int64_t> queue_;               // Lineages to continue.
  std::map<int64_t, StageRecord> records_;  // By place.
  std::optional<double> best_metric_;
  std::set<TrialId> counted_;  // A trial that answers several proposals counts once.
  int64_t trials_since_best_ = 0;
};

}  // namespace dsat
