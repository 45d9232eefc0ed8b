// asha: bisect the micro-batch size of many random configurations a few trials deep, and go deeper
// only with those whose best trial so far is among the best (rungs.h).
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

  // The highest rung that has something to run, by continuation or promotion (on equal rungs: the
  // lineage with more completed trials); if there is neither, a new lineage starts.
  std::optional<Proposal> Ask() override;
  void Tell(int64_t tag, const Trial& finished) override;
  std::unique_ptr<Method> Clone() const override { return std::make_unique<AshaMethod>(*this); }

  const LineageTable& table() const { return table_; }

 private:
  Proposal Propose(Lineage& lineage, const Step& step, int64_t rung);

  LineageTable table_;
  RungIndex rungs_;
};

}  // namespace dsat

#endif  // DSAT_METHODS_ASHA_H_
