// Checks every condition against the values that its keys can have.
#include "searcher/input/where.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "engine/config/settings.h"
#include "proto/comparison.h"
#include "proto/launch_settings.h"

namespace dsat {
namespace {

using engine::Key;
using engine::Settings;

constexpr char kWhere[] = "/where";
constexpr size_t kMostPairs = 100'000;  // Pairs of values that conditions compare.

// Keys whose values a search does not choose freely, and what to use in place of a condition.
constexpr std::array<std::pair<const char*, const char*>, 4> kElsewhere = {{
    {kMicroBatchKey, "a range of it in search_space"},
    {"/train_batch_size", "--train-batch-size"},
    {kAccumulationKey, "--train-batch-size, which it follows"},
    {kStageKey, "--zero-stages"},
}};

class WhereReader {
 public:
  WhereReader(const ExperimentDocument& document, const ExperimentSpec& spec)
      : document_(document), spec_(spec), settings_(spec.ds_config, "ds_config") {}

  Comparison Read(const std::string& place, const Json& entry) {
    const auto fail = [&](const std::string& message) { document_.Fail(place, message); };
    if (!entry.is_string())
      fail(fmt::format("is {}; expected a text such as \"/KEY <= 5\"", entry.dump()));
    Comparison condition;
    try {
      condition = ParseComparison(entry.get<std::string>());
    } catch (const Error& error) {
      fail(error.what());
    }
    place_ = place;
    text_ = condition.text;
    const std::vector<Json> left = ValuesOf(condition.left);
    const std::vector<Json> right =
        condition.right.empty() ? std::vector{condition.constant} : ValuesOf(condition.right);
    if (!IsSearched(condition.left) && !IsSearched(condition.right))
      Fail("has no key that is searched; expected one of search_space");
    CheckValues(condition, left, right);
    return condition;
  }

  // Whether the submitted config meets the condition.
  bool IsMet(const Comparison& condition) const {
    return Holds(condition,
                 [&](const std::string& pointer) { return settings_.ValueOrNull(pointer); });
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    document_.Fail(place_, fmt::format("is \"{}\", which {}", text_, message));
  }

  const Json* UserValues(const std::string& pointer) const {
    const auto found = spec_.search_space.find(pointer);
    return found == spec_.search_space.end() ? nullptr : &*found;
  }

  // Whether the user searches it, or a search may by default.
  bool IsSearched(const std::string& pointer) const {
    const Key* key = settings_.keys().Find(pointer);
    return UserValues(pointer) != nullptr || (key != nullptr && *key->values != '\0');
  }

  // All values that a configuration can have at a pointer, as far as they are known here.
  std::vector<Json> ValuesOf(const std::string& pointer) const {
    for (const auto& [key, instead] : kElsewhere) {
      if (pointer == key) Fail(fmt::format("has {}; expected {} instead", key, instead));
    }
    const Key* key = settings_.keys().Find(pointer);
    if (key != nullptr && key->type == engine::KeyType::kAlias)
      Fail(fmt::format("has {}; expected its other name, {}", pointer, key->fallback));
    std::vector<Json> values;
    if (const Json* user_values = UserValues(pointer)) {
      values = *user_values;
    } else if (key != nullptr && *key->values != '\0') {
      values = Json::parse(key->values);
    }
    const Json submitted = settings_.ValueOrNull(pointer);
    if (!submitted.is_null()) values.push_back(submitted);
    if (values.empty()) {
      Fail(
          fmt::format("has {}, which is not searched and has no value; expected a key of "
                      "search_space or of the ds_config",
                      NameOfPointer(pointer)));
    }
    return values;
  }

  void CheckValues(const Comparison& condition, const std::vector<Json>& left,
                   const std::vector<Json>& right) {
    num_pairs_ += left.size() * right.size();
    if (num_pairs_ > kMostPairs)
      Fail(
          fmt::format("makes more than {} pairs of values; expected fewer conditions, or fewer "
                      "values in search_space",
                      kMostPairs));
    bool can_hold = false;
    for (const Json& a : left) {
      for (const Json& b : right) {
        if (!CanCompare(condition.op, a, b)) {
          Fail(
              fmt::format("compares {} with {}; expected two numbers, or with == and != two texts "
                          "or two booleans",
                          a.dump(), b.dump()));
        }
        const auto value_of = [&](const std::string& at) { return at == condition.left ? a : b; };
        can_hold = can_hold || Holds(condition, value_of);
      }
    }
    if (!can_hold) Fail("no values of its keys meet; expected other values or another condition");
  }

  const ExperimentDocument& document_;
  const ExperimentSpec& spec_;
  Settings settings_;
  std::string place_;  // The place of the entry that is read, and its text.
  std::string text_;
  size_t num_pairs_ = 0;
};

}  // namespace

std::vector<std::string> ReadWhere(const ExperimentDocument& document, const Json& section,
                                   const ExperimentSpec& spec, std::vector<std::string>* warnings) {
  if (!section.is_array() || section.empty())
    document.Fail(kWhere, fmt::format("is {}; expected a list of conditions such as \"/KEY <= 5\"",
                                      section.dump()));
  WhereReader reader(document, spec);
  std::vector<std::string> conditions;
  for (const Json& entry : section) {
    const std::string place = fmt::format("{}/{}", kWhere, conditions.size());
    const Comparison condition = reader.Read(place, entry);
    conditions.push_back(condition.text);
    if (reader.IsMet(condition)) continue;
    warnings->push_back(fmt::format(
        "{}: the submitted configuration does not meet \"{}\"; it is measured as it is, "
        "to compare with, and stays the answer if nothing else is faster",
        document.Place(place), condition.text));
  }
  return conditions;
}

}  // namespace dsat
