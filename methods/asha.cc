// asha: the choice between continuing, promoting and starting a lineage.
#include "methods/asha.h"

#include <algorithm>
#include <utility>

#include "methods/lineage.h"

namespace dsat {

int64_t TrialsToComplete(const SearchOptions& options, int64_t rung) {
  int64_t trials = options.asha.min_binary_search_trials;
  for (int64_t i = 0; i < options.asha.asha_early_stopping + rung; ++i) {
    if (trials > INT64_MAX / options.asha.divisor) return INT64_MAX;
    trials *= options.asha.divisor;
  }
  return trials;
}

bool CompletedRung(const LineageTable& table, const Lineage& lineage, int64_t rung) {
  if (lineage.NumCompleted() >= TrialsToComplete(table.options(), rung)) return true;
  if (lineage.Rung() != rung) return lineage.Rung() > rung;
  return lineage.Idle() && !lineage.trials.empty() && !NextBisectionStep(table, lineage);
}

void RungIndex::Update(const LineageTable& table, const Lineage& lineage) {
  entries_.resize(table.lineages().size());
  Entry& entry = entries_[lineage.number];
  Remove(entry);
  // A lineage that has completed a rung has completed all lower ones.
  for (int64_t r = 0; r < table.options().asha.max_rungs && CompletedRung(table, lineage, r); ++r) {
    if (r == std::ssize(rungs_)) rungs_.emplace_back();
    Place place;
    if (const std::optional<double> best = table.BestMetric(lineage, r)) {
      // Better(1, 2): smaller is better.
      place.rank = Rank(table.Better(1, 2) ? *best : -*best, lineage.number);
      place.waiting =
          lineage.Rung() <= r && lineage.Idle() &&
          (table.policy().exhausted_lineage_blocks_promotion || NextBisectionStep(table, lineage));
    }
    Insert(place, rungs_[r]);
    entry.places.push_back(place);
  }
  const bool goes_on = lineage.Idle() && !lineage.trials.empty();
  if (goes_on && !CompletedRung(table, lineage, lineage.Rung())) {
    entry.turn = Turn(-lineage.Rung(), -lineage.NumCompleted(), lineage.number);
    turns_.insert(*entry.turn);
  }
}

void RungIndex::Remove(Entry& entry) {
  for (int64_t r = 0; r < std::ssize(entry.places); ++r) {
    Rung& rung = rungs_[r];
    const Place& place = entry.places[r];
    --rung.num_completed;
    if (!place.rank) continue;
    rung.ranked.erase(std::lower_bound(rung.ranked.begin(), rung.ranked.end(), *place.rank));
    if (place.waiting) rung.waiting.erase(*place.rank);
  }
  if (entry.turn) turns_.erase(*entry.turn);
  entry = {};
}

void RungIndex::Insert(const Place& place, Rung& rung) {
  ++rung.num_completed;
  if (!place.rank) return;
  rung.ranked.insert(std::lower_bound(rung.ranked.begin(), rung.ranked.end(), *place.rank),
                     *place.rank);
  if (place.waiting) rung.waiting.insert(*place.rank);
}

int64_t RungIndex::NumTop(const LineageTable& table, const Rung& rung) const {
  return std::min(rung.num_completed / table.options().asha.divisor, std::ssize(rung.ranked));
}

std::optional<RungStep> RungIndex::NextPromotion(const LineageTable& table) const {
  // There is no promotion from the top rung, max_rungs - 1.
  const int64_t num_left = table.options().asha.max_rungs - 1;
  for (int64_t r = std::min(std::ssize(rungs_), num_left); r-- > 0;) {
    const Rung& rung = rungs_[r];
    const int64_t num_top = NumTop(table, rung);
    if (rung.waiting.empty() || num_top == 0) continue;
    const Rank first = *rung.waiting.begin();
    if (rung.ranked[num_top - 1] < first) continue;
    const Lineage& lineage = table.lineages()[first.second];
    const std::optional<Step> step = NextBisectionStep(table, lineage);
    if (!step) return std::nullopt;  // With exhausted_lineage_blocks_promotion only.
    return RungStep{lineage.number, *step, lineage.Rung() + 1};
  }
  return std::nullopt;
}

std::optional<RungStep> RungIndex::NextContinuation(const LineageTable& table) const {
  if (turns_.empty()) return std::nullopt;
  const Lineage& lineage = table.lineages()[std::get<2>(*turns_.begin())];
  return RungStep{lineage.number, *NextBisectionStep(table, lineage), lineage.Rung()};
}

std::optional<Proposal> AshaMethod::Ask() {
  std::optional<RungStep> next = rungs_.NextContinuation(table_);
  const std::optional<RungStep> promotion = rungs_.NextPromotion(table_);
  const auto rank = [&](const RungStep& step) {
    return std::pair(step.rung, table_.at(step.lineage).NumCompleted());
  };
  if (promotion && (!next || rank(*promotion) > rank(*next))) next = promotion;
  if (next && table_.CoversStages())
    return Propose(table_.at(next->lineage), next->step, next->rung);
  Lineage& fresh = table_.Draw();
  return Propose(fresh, FirstBisectionStep(table_, fresh), 0);
}

Proposal AshaMethod::Propose(Lineage& lineage, const Step& step, int64_t rung) {
  Proposal proposal = table_.Propose(lineage, step, rung);
  rungs_.Update(table_, lineage);
  return proposal;
}

void AshaMethod::Tell(int64_t tag, const Trial& finished) {
  rungs_.Update(table_, table_.Tell(tag, finished));
}

}  // namespace dsat
