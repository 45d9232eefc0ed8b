// Evaluates the conditions of a search space.
#include "methods/constraints.h"

#include <algorithm>

namespace dsat {
namespace {

bool IsCompared(const SearchSpace& space, const std::string& pointer) {
  return std::ranges::any_of(
      space.where, [&](const Comparison& c) { return c.left == pointer || c.right == pointer; });
}

// Changes `num_changes` knobs from the one at `first` on until the assignment is allowed.
bool Change(const SearchSpace& space, const StageSpace& stage, size_t first, int num_changes,
            Assignment& assignment) {
  if (num_changes == 0) return IsAllowed(space, stage, assignment);
  for (size_t i = first; i < stage.knobs.size(); ++i) {
    const std::string& pointer = stage.knobs[i].pointer;
    if (assignment.contains(pointer) || !IsCompared(space, pointer)) continue;
    for (const Json& value : stage.knobs[i].values) {
      assignment[pointer] = value;
      if (Change(space, stage, i + 1, num_changes - 1, assignment)) return true;
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
  for (const int num_changes : {0, 1, 2}) {
    Assignment assignment = fixed;
    if (Change(space, stage, 0, num_changes, assignment)) return assignment;
  }
  return std::nullopt;
}

}  // namespace dsat
