// Evaluates the conditions of a search space.
#include "methods/constraints.h"

#include <algorithm>

namespace dsat {
namespace {

bool IsCompared(const SearchSpace& space, const std::string& pointer) {
  return std::ranges::any_of(
      space.where, [&](const Comparison& c) { return c.left == pointer || c.right == pointer; });
}

constexpr int kMostTried = 100'000;

// Changes `num_changes` knobs from the one at `first` on until the assignment is allowed, or no
// more may be tried.
bool Change(const SearchSpace& space, const StageSpace& stage, size_t first, size_t num_changes,
            Assignment& assignment, int& left) {
  if (num_changes == 0) return --left >= 0 && IsAllowed(space, stage, assignment);
  for (size_t i = first; i < stage.knobs.size(); ++i) {
    const std::string& pointer = stage.knobs[i].pointer;
    if (assignment.contains(pointer) || !IsCompared(space, pointer)) continue;
    for (const Json& value : stage.knobs[i].values) {
      assignment[pointer] = value;
      if (Change(space, stage, i + 1, num_changes - 1, assignment, left)) return true;
      if (left <= 0) break;
    }
    assignment.erase(pointer);
  }
  return false;
}

}  // namespace

bool IsAllowed(const SearchSpace& space, const StageSpace& stage, const Assignment& assignment) {
  const PointerValue value_of = [&](const std::string& pointer) {
    for (const Assignment* values : {&assignment, &stage.settings, &stage.submitted}) {
      const auto found = values->find(pointer);
      if (found != values->end()) return found->second;
    }
    return Json();
  };
  return std::ranges::all_of(space.where, [&](const Comparison& c) { return Holds(c, value_of); });
}

std::optional<Assignment> NearestAllowed(const SearchSpace& space, const StageSpace& stage,
                                         const Assignment& fixed) {
  int left = kMostTried;
  for (size_t num_changes = 0; num_changes <= stage.knobs.size() && left > 0; ++num_changes) {
    Assignment assignment = fixed;
    if (Change(space, stage, 0, num_changes, assignment, left)) return assignment;
  }
  return std::nullopt;
}

}  // namespace dsat
