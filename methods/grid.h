// grid: a search without random draws. It tries every stage at micro-batch sizes 1, 2, 4, ... with
// the submitted knobs, or the allowed ones next to them, and then, at the best size of each stage,
// one knob at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "methods/method.h"
#include "proto/experiment.h"
#include "proto/search_policy.h"

namespace dsat {

class GridMethod : public Method {
 public:
  GridMethod(const SearchSpace& space, const SearchOptions& options);

  // Proposes the smallest size over all stages first. Equal sizes are in the order of the space,
  // with stages that are predicted not to fit last. A stage is tried up to its approximate maximum
  // and beyond it until one size is clearly worse than its best or two in a row are not better, but
  // never beyond a size that was too large. When
  // all sizes have ended, it proposes each value of each knob, for the best stage first. Returns
  // nullopt while a stage waits for its last trial, and after the last knob.
  std::optional<Proposal> Ask() override;
  void Tell(int64_t tag, const Trial& finished) override;

 private:
  // The sizes of one stage that have been tried.
  struct Walk {
    int64_t stage = 0;  // In space_.
    Assignment config;  // Everything but the micro-batch size.
    int64_t next_size = 1;
    int64_t num_running = 0;
    int64_t too_large = INT64_MAX;      // Smallest size that does not fit.
    std::map<int64_t, double> metrics;  // By size.
    std::optional<double> best_metric;
    int64_t best_size = 0;
  };
  struct Entry {
    int64_t walk = 0;
    int64_t size = 0;  // 0 for a variation of a knob, which does not change the walk.
  };

  const StageSpace& StageOf(const Walk& walk) const { return space_.stages[walk.stage]; }
  // Whether the walk may continue now; false while the trial that decides this is running.
  bool HasNext(const Walk& walk) const;
  // Whether the metric at the last size, beyond the approximate maximum, speaks for the next one.
  bool GoesOn(const Walk& walk) const;
  std::optional<Proposal> AskSize();
  std::optional<Proposal> AskVariation();
  std::vector<Assignment> MakeVariations() const;
  bool Better(double a, double b) const { return smaller_is_better_ ? a < b : a > b; }

  SearchSpace space_;
  SearchOptions options_;
  SearchPolicy policy_;
  bool smaller_is_better_;
  std::vector<Walk> walks_;
  std::vector<Entry> entries_;                         // By tag.
  std::optional<std::vector<Assignment>> variations_;  // Set once every walk has ended.
  size_t next_variation_ = 0;
};

}  // namespace dsat
