// Rungs are not stored: they follow from the lineages, so that nothing can disagree with them.
#include "methods/rungs.h"

#include <algorithm>
#include <utility>

#include "methods/bisection.h"

namespace dsat {

int64_t TrialsToComplete(const SearchOptions& options, int64_t rung) {
  int64_t trials = options.min_binary_search_trials;
  for (int64_t i = 0; i < options.asha_early_stopping + rung; ++i) {
    if (trials > INT64_MAX / options.divisor) return INT64_MAX;
    trials *= options.divisor;
  }
  return trials;
}

bool CompletedRung(const LineageTable& table, const Lineage& lineage, int64_t rung) {
  if (lineage.NumCompleted() >= TrialsToComplete(table.options(), rung)) return true;
  if (lineage.Rung() != rung) return lineage.Rung() > rung;
  return lineage.Idle() && !lineage.trials.empty() && !NextBisectionStep(table, lineage);
}

std::vector<const Lineage*> TopLineages(const LineageTable& table, int64_t rung) {
  int64_t num_completed = 0;
  std::vector<std::pair<double, const Lineage*>> ranked;
  for (const Lineage& lineage : table.lineages()) {
    if (!CompletedRung(table, lineage, rung)) continue;
    ++num_completed;
    const std::optional<double> best = table.BestMetric(lineage, rung);
    if (best) ranked.emplace_back(*best, &lineage);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](const auto& a, const auto& b) { return table.Better(a.first, b.first); });
  const auto size = static_cast<size_t>(num_completed / table.options().divisor);
  std::vector<const Lineage*> top;
  for (size_t i = 0; i < std::min(size, ranked.size()); ++i)
    top.push_back(ranked[i].second);
  return top;
}

std::optional<RungStep> NextPromotion(const LineageTable& table) {
  // Nothing leaves the top rung, max_rungs - 1.
  for (int64_t rung = table.options().max_rungs - 2; rung >= 0; --rung) {
    for (const Lineage* lineage : TopLineages(table, rung)) {
      if (lineage->Rung() > rung || !lineage->Idle()) continue;  // Promoted, or about to be ranked.
      const std::optional<Step> step = NextBisectionStep(table, *lineage);
      if (step) return RungStep{lineage->number, *step, lineage->Rung() + 1};
      if (table.options().compat_determined) return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<RungStep> NextContinuation(const LineageTable& table) {
  const Lineage* chosen = nullptr;
  for (const Lineage& lineage : table.lineages()) {
    if (!lineage.Idle() || CompletedRung(table, lineage, lineage.Rung())) continue;
    const auto rank = [](const Lineage& l) { return std::pair(l.Rung(), l.NumCompleted()); };
    if (chosen == nullptr || rank(lineage) > rank(*chosen)) chosen = &lineage;
  }
  if (chosen == nullptr) return std::nullopt;
  return RungStep{chosen->number, *NextBisectionStep(table, *chosen), chosen->Rung()};
}

}  // namespace dsat
