// The rungs of asha.
#include "methods/rungs.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "methods/bisection.h"

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

std::optional<RungStep> NextPromotion(const LineageTable& table) {
  // There is no promotion from the top rung, max_rungs - 1.
  for (int64_t rung = table.options().asha.max_rungs - 2; rung >= 0; --rung) {
    int64_t num_completed = 0;
    std::vector<std::pair<double, const Lineage*>> ranked;
    for (const Lineage& lineage : table.lineages()) {
      if (!CompletedRung(table, lineage, rung)) continue;
      ++num_completed;
      const std::optional<double> best = table.BestMetric(lineage, rung);
      if (best) ranked.emplace_back(*best, &lineage);
    }
    std::ranges::stable_sort(
        ranked, [&](const auto& a, const auto& b) { return table.Better(a.first, b.first); });
    const int64_t num_top =
        std::min(num_completed / table.options().asha.divisor, std::ssize(ranked));
    for (const auto& [best, lineage] : std::span(ranked).first(num_top)) {
      if (lineage->Rung() > rung || !lineage->Idle()) continue;
      const std::optional<Step> step = NextBisectionStep(table, *lineage);
      if (step) return RungStep{lineage->number, *step, lineage->Rung() + 1};
      if (table.policy().exhausted_lineage_blocks_promotion) return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<RungStep> NextContinuation(const LineageTable& table) {
  const auto rank = [](const Lineage& l) { return std::pair(l.Rung(), l.NumCompleted()); };
  const Lineage* next = nullptr;
  for (const Lineage& lineage : table.lineages()) {
    const bool waits = lineage.Idle() && !lineage.trials.empty();
    if (!waits || CompletedRung(table, lineage, lineage.Rung())) continue;
    if (next == nullptr || rank(lineage) > rank(*next)) next = &lineage;
  }
  if (next == nullptr) return std::nullopt;
  return RungStep{next->number, *NextBisectionStep(table, *next), next->Rung()};
}

}  // namespace dsat
