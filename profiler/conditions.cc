// Seeks values that satisfy all conditions, one key after another.
#include "profiler/conditions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>

#include "base/error.h"

namespace dsat {
namespace {

// Whether some choice of values satisfies the conditions. A condition holds as long as one of its
// keys has no value.
bool CanHold(std::span<const Comparison> where, const PossibleValues& values_of) {
  std::map<std::string, std::vector<Json>> possible;
  for (const Comparison& condition : where) {
    for (const std::string& pointer : {condition.left, condition.right}) {
      if (!pointer.empty()) possible.emplace(pointer, values_of(pointer));
    }
  }
  std::map<std::string, Json> chosen;
  const PointerValue value_of = [&](const std::string& pointer) {
    const auto found = chosen.find(pointer);
    return found == chosen.end() ? Json() : found->second;
  };
  using Entry = std::map<std::string, std::vector<Json>>::const_iterator;
  const std::function<bool(Entry)> can_from = [&](Entry entry) {
    if (!std::ranges::all_of(where, [&](const Comparison& c) { return Holds(c, value_of); }))
      return false;
    if (entry == possible.end()) return true;
    const auto& [pointer, values] = *entry;
    const Entry next = std::next(entry);
    if (values.empty()) return can_from(next);
    for (const Json& value : values) {
      chosen[pointer] = value;
      if (can_from(next)) return true;
    }
    chosen.erase(pointer);
    return false;
  };
  return can_from(possible.begin());
}

}  // namespace

std::string WhyExcluded(const std::vector<Comparison>& where, const PossibleValues& values_of) {
  std::vector<std::string> all;
  for (const Comparison& condition : where) {
    if (!CanHold({&condition, 1}, values_of))
      return fmt::format("the condition \"{}\" of where excludes it", condition.text);
    all.push_back(condition.text);
  }
  if (CanHold(where, values_of)) return "";
  return fmt::format("the conditions \"{}\" of where exclude it together",
                     fmt::join(all, "\", \""));
}

std::vector<Comparison> ConditionsOf(const ExperimentSpec& spec) {
  std::vector<Comparison> where;
  for (const std::string& text : spec.where)
    where.push_back(ParseComparison(text));
  return where;
}

void ThrowNothingLeft(const ExperimentSpec& spec) {
  Throw(ErrorCode::kInvalidArgument,
        "{}: where: no configuration of the space meets \"{}\"; expected other conditions, further "
        "values in search_space or another --zero-stages or --space",
        spec.config_path, fmt::join(spec.where, "\", \""));
}

}  // namespace dsat
