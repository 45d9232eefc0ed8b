// asha: the choice between continuing, promoting and starting a lineage.
#include "methods/asha.h"

#include <utility>

#include "methods/bisection.h"
#include "methods/rungs.h"

namespace dsat {

std::optional<Proposal> AshaMethod::Ask() {
  std::optional<RungStep> next = NextContinuation(table_);
  const std::optional<RungStep> promotion = NextPromotion(table_);
  const auto rank = [&](const RungStep& step) {
    return std::pair(step.rung, table_.at(step.lineage).NumCompleted());
  };
  if (promotion && (!next || rank(*promotion) > rank(*next))) next = promotion;
  if (next && table_.CoversStages())
    return table_.Propose(table_.at(next->lineage), next->step, next->rung);
  Lineage& fresh = table_.Draw();
  return table_.Propose(fresh, FirstBisectionStep(table_, fresh));
}

}  // namespace dsat
