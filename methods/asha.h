// asha: bisects the micro-batch size of many random configurations with a few trials each, and
// continues only those whose best trial is among the best.
//
// Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter
// Tuning", 2018) with the number of trials in a lineage as the resource, as in Determined's
// DeepSpeed Autotune.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "methods/lineage.h"
#include "methods/method.h"

namespace dsat {

// The number of completed trials that complete a rung: min_binary_search_trials *
// divisor^(asha_early_stopping + rung), at most INT64_MAX.
int64_t TrialsToComplete(const SearchOptions& options, int64_t rung);

// True if the lineage has that many completed trials, is beyond the rung, or is in it and its
// bisection is over.
bool CompletedRung(const LineageTable& table, const Lineage& lineage, int64_t rung);

// The next trial of asha: a lineage, its step and its rung.
struct RungStep {
  int64_t lineage = 0;
  Step step;
  int64_t rung = 0;
};

// A sorted index of a table of lineages, so that queries do not visit all of them. It depends only
// on the table and not on the order of updates.
class RungIndex {
 public:
  // Must be called after every change of a lineage.
  void Update(const LineageTable& table, const Lineage& lineage);

  // The promotion from the highest rung that has one: the best of its top lineages that is still in
  // it. The top are the best 1/divisor (rounded down) of the lineages that have completed the rung,
  // ranked by their trials in rungs up to this one; ties by number. Lineages without a measurement
  // count but are never at the top. A lineage whose bisection is over is skipped, or blocks all
  // promotions (SearchPolicy::exhausted_lineage_blocks_promotion).
  std::optional<RungStep> NextPromotion(const LineageTable& table) const;

  // The continuation of a lineage that has not completed its rung: highest rung first, then most
  // completed trials, then the oldest lineage.
  std::optional<RungStep> NextContinuation(const LineageTable& table) const;

 private:
  // The metric, negated if larger is better, and the lineage.
  using Rank = std::pair<double, int64_t>;
  struct Rung {
    int64_t num_completed = 0;
    std::vector<Rank> ranked;  // Sorted.
    std::set<Rank> waiting;    // Members of `ranked` in this rung, with no trial running.
  };
  // The entry of a lineage in a rung that it has completed.
  struct Place {
    std::optional<Rank> rank;  // Unset without a measurement.
    bool waiting = false;
  };
  // Negated rung, negated number of completed trials, lineage: the smallest continues first.
  using Turn = std::tuple<int64_t, int64_t, int64_t>;
  struct Entry {
    std::vector<Place> places;  // By rung.
    std::optional<Turn> turn;   // Set if it has not completed its rung.
  };

  void Remove(Entry& entry);
  void Insert(const Place& place, Rung& rung);
  int64_t NumTop(const LineageTable& table, const Rung& rung) const;

  std::vector<Entry> entries_;  // By lineage.
  std::vector<Rung> rungs_;     // The rungs that a lineage has completed.
  std::set<Turn> turns_;
};

class AshaMethod : public Method {
 public:
  AshaMethod(const SearchSpace& space, const SearchOptions& options) : table_(space, options) {}

  // Continues or promotes a lineage in the highest rung in which this is possible (of equal rungs,
  // the lineage with more completed trials). If it is not possible, starts a new lineage.
  std::optional<Proposal> Ask() override;
  void Tell(int64_t tag, const Trial& finished) override;

  const LineageTable& table() const { return table_; }

 private:
  Proposal Propose(Lineage& lineage, const Step& step, int64_t rung);

  LineageTable table_;
  RungIndex rungs_;
};

}  // namespace dsat
