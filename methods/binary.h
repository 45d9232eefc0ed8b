// binary: bisects one random configuration after another to the largest micro-batch size that fits.
// The metric has no influence, except that it ends the growth of a range (NextBisectionStep).
#pragma once

#include <deque>
#include <optional>

#include "methods/lineage.h"
#include "methods/method.h"

namespace dsat {

class BinaryMethod : public Method {
 public:
  BinaryMethod(const SearchSpace& space, const SearchOptions& options) : table_(space, options) {}

  // Continues lineages in the order in which their trials ended; if none waits, starts a new one.
  std::optional<Proposal> Ask() override;
  void Tell(int64_t tag, const Trial& finished) override;

  const LineageTable& table() const { return table_; }

 private:
  struct FollowUp {
    int64_t lineage;
    Step step;
  };

  LineageTable table_;
  std::deque<FollowUp> queue_;
};

}  // namespace dsat
