// Seeks values that satisfy all conditions, one key after another.
#include "profiler/conditions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>

#include "base/error.h"

namespace dsat {
namespace {

class Seeker {
 public:
  Seeker(std::span<const Comparison> where, const PossibleValues& values_of) : where_(where) {
    for (const Comparison& condition : where) {
      for (const std::string& pointer : {condition.left, condition.right}) {
        if (!pointer.empty()) possible_.emplace(pointer, values_of(pointer));
      }
    }
  }

  bool Finds() { return FindsFrom(possible_.begin()); }

 private:
  using Entry = std::map<std::string, std::vector<Json>>::const_iterator;

  // A condition holds as long as one of its keys has no value.
  bool FindsFrom(Entry entry) {
    const PointerValue value_of = [this](const std::string& pointer) {
      const auto found = chosen_.find(pointer);
      return found == chosen_.end() ? Json() : found->second;
    };
    if (!std::ranges::all_of(where_, [&](const Comparison& c) { return Holds(c, value_of); }))
      return false;
    if (entry == possible_.end()) return true;
    const auto& [pointer, values] = *entry;
    const Entry next = std::next(entry);
    if (values.empty()) return FindsFrom(next);
    for (const Json& value : values) {
      chosen_[pointer] = value;
      if (FindsFrom(next)) return true;
    }
    chosen_.erase(pointer);
    return false;
  }

  std::span<const Comparison> where_;
  std::map<std::string, std::vector<Json>> possible_;
  std::map<std::string, Json> chosen_;
};

}  // namespace

std::string WhyExcluded(const std::vector<Comparison>& where, const PossibleValues& values_of) {
  std::vector<std::string> all;
  for (const Comparison& condition : where) {
    if (!Seeker({&condition, 1}, values_of).Finds())
      return fmt::format("the condition \"{}\" of where excludes it", condition.text);
    all.push_back(condition.text);
  }
  if (where.size() < 2 || Seeker(where, values_of).Finds()) return "";
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
