// binary: a queue of lineages to bisect on.
#include "methods/binary.h"

namespace dsat {

std::optional<Proposal> BinaryMethod::Ask() {
  if (queue_.empty() || !table_.CoversStages()) {
    Lineage& fresh = table_.Draw();
    return table_.Propose(fresh, FirstBisectionStep(table_, fresh));
  }
  const FollowUp next = queue_.front();
  queue_.pop_front();
  return table_.Propose(table_.at(next.lineage), next.step);
}

void BinaryMethod::Tell(int64_t tag, const Trial& finished) {
  const Lineage& lineage = table_.Tell(tag, finished);
  if (const std::optional<Step> next = NextBisectionStep(table_, lineage)) {
    queue_.push_back({.lineage = lineage.number, .step = *next});
  }
}

}  // namespace dsat
