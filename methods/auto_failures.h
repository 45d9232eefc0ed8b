// auto's belief about crashes: which configurations run at all.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "methods/auto_space.h"

namespace dsat {

// A crash has a cause: a value that no configuration that has run has, such as a stage or the value
// of a knob; if there is none, a value that none of them has at the same place; and if there is
// none of these either, the micro-batch size at this place, if no larger one has run there.
class AutoFailures {
 public:
  void Ran(const AutoConfig& config);
  void Failed(const AutoConfig& config);

  // In (0, 1]: halved for each failure that the most suspect value of the configuration may have
  // caused; 1 as long as nothing has run, because all values are suspect then.
  double ProbabilityRuns(const AutoConfig& config) const;

 private:
  // The number of the place, the stage or a knob, and its value.
  using Value = std::pair<int64_t, double>;

  static std::vector<Value> ValuesOf(const AutoConfig& config);
  void FindCauses();

  std::vector<AutoConfig> ran_, failed_;
  // The values that have run, by themselves and together with a place, and the largest sizes.
  std::set<Value> good_;
  std::set<std::pair<Value, Value>> good_pairs_;
  std::map<int64_t, int64_t> largest_;  // By place.
  // How many failures each value may have caused, by itself and together with a place.
  std::map<Value, int64_t> single_;
  std::map<std::pair<Value, Value>, int64_t> pairs_;
  std::vector<AutoConfig> sizes_;  // Their sizes may have caused their failures.
};

}  // namespace dsat
