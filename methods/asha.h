// asha: bisects the micro-batch size of many random configurations with a few trials each, and
// continues only those whose best trial is among the best (rungs.h).
#ifndef DSAT_METHODS_ASHA_H_
#define DSAT_METHODS_ASHA_H_

#include <memory>
#include <optional>

#include "methods/method.h"
#include "methods/rungs.h"

namespace dsat {

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

#endif  // DSAT_METHODS_ASHA_H_
