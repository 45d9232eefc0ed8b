// The rungs of asha: who has completed which, who is promoted, who goes on.
//
// Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter
// Tuning", 2018) with the number of trials in a lineage as the resource, as in Determined's
// DeepSpeed Autotune.
#ifndef DSAT_METHODS_RUNGS_H_
#define DSAT_METHODS_RUNGS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "methods/lineage.h"

namespace dsat {

// Completed trials that complete a rung: min_binary_search_trials * divisor^(asha_early_stopping +
// rung), at most INT64_MAX.
int64_t TrialsToComplete(const SearchOptions& options, int64_t rung);

// True if the lineage has that many, has gone beyond the rung, or is in it and has nothing left to
// bisect.
bool CompletedRung(const LineageTable& table, const Lineage& lineage, int64_t rung);

// What to run next for asha: a lineage, its step, the rung it will run in.
struct RungStep {
  int64_t lineage = 0;
  Step step;
  int64_t rung = 0;
};

// What follows from a table of lineages, kept sorted so that a question takes no walk over all of
// them. It follows from the table alone: RungIndex(table) is the same however the table came about.
class RungIndex {
 public:
  RungIndex() = default;
  explicit RungIndex(const LineageTable& table);

  // To be called after every change of a lineage.
  void Update(const LineageTable& table, const Lineage& lineage);

  // The best 1/divisor of the lineages that completed the rung (rounded down), best first; ranked
  // by their trials in rungs up to this one, equals by number. Lineages without a measurement count
  // but are never among them.
  std::vector<int64_t> Top(const LineageTable& table, int64_t rung) const;

  // The promotion out of the highest rung that has one: the best of its top lineages that is still
  // in it. One with nothing left to bisect is passed over; with compat_determined it blocks every
  // other promotion instead.
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
    std::set<Rank> waiting;    // Those of `ranked` that are in this rung, with no trial running.
  };
  // What a lineage has in a rung that it completed.
  struct Place {
    std::optional<Rank> rank;  // Unset without a measurement.
    bool waiting = false;
  };
  // Negated rung, negated number of completed trials, lineage: the first goes on first.
  using Turn = std::tuple<int64_t, int64_t, int64_t>;
  struct Entry {
    std::vector<Place> places;  // By rung.
    std::optional<Turn> turn;   // Set if it has not completed its rung.
  };

  void Remove(Entry& entry);
  void Insert(const Place& place, Rung& rung);
  size_t NumTop(const LineageTable& table, const Rung& rung) const;

  std::vector<Entry> entries_;  // By lineage.
  std::vector<Rung> rungs_;     // Those that a lineage has completed.
  std::set<Turn> turns_;
};

}  // namespace dsat

#endif  // DSAT_METHODS_RUNGS_H_
