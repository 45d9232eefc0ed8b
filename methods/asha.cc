// asha: the choice between continuing, promoting and starting a lineage.
#include "methods/asha.h"

#include <utility>

#include "methods/bisection.h"

namespace dsat {

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
