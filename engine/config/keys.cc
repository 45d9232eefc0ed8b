// Look-ups in the key table, and the check of one value.
#include "engine/config/keys.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/error.h"

namespace dsat::engine {
namespace {

std::string_view Parent(std::string_view pointer) {
  return pointer.substr(0, pointer.rfind('/'));
}

bool InRange(const Key& key, double value) {
  if (!std::isfinite(value)) return false;
  bool high_enough = key.above_min ? value > key.min : value >= key.min;
  bool low_enough = key.below_max ? value < key.max : value <= key.max;
  return high_enough && low_enough;
}

// " >= 1", " in [0, 1)", or "".
std::string RangeText(const Key& key) {
  bool has_min = std::isfinite(key.min);
  bool has_max = std::isfinite(key.max);
  if (has_min && has_max) {
    return fmt::format(" in {}{}, {}{}", key.above_min ? '(' : '[', key.min, key.max,
                       key.below_max ? ')' : ']');
  }
  if (has_min) return fmt::format(" {} {}", key.above_min ? ">" : ">=", key.min);
  return "";
}

bool IsStage(const Key& key, const Json& value) {
  if (value.is_boolean()) return true;
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    return text.size() == 1 && text[0] >= '0' && text[0] <= '3';
  }
  std::optional<int64_t> number = WholeNumber(value);
  return number.has_value() && InRange(key, static_cast<double>(*number));
}

bool IsPair(const Key& key, const Json& value) {
  auto fits = [&](const Json& item) { return item.is_number() && InRange(key, item); };
  return value.is_array() && value.size() == 2 && fits(value[0]) && fits(value[1]);
}

bool Fits(const Key& key, const Json& value) {
  switch (key.type) {
    case KeyType::kSection:
    case KeyType::kOpenSection:
      return value.is_object() ||
             (key.pointer == std::string_view("/zero_optimization") && value.is_boolean());
    case KeyType::kBool:
      return value.is_boolean();
    case KeyType::kInt:
      return WholeNumber(value).has_value() && InRange(key, value.get<double>());
    case KeyType::kNumber:
      return value.is_number() && InRange(key, value.get<double>());
    case KeyType::kText:
      return value.is_string() &&
             (*key.choices == '\0' || IsOneOf(value.get_ref<const std::string&>(), key.choices));
    case KeyType::kNumbers:
      return IsPair(key, value);
    case KeyType::kStage:
      return IsStage(key, value);
    case KeyType::kAny:
      return true;
    case KeyType::kAlias:
      return Fits(*FindKey(key.fallback), value);
  }
  return false;
}

}  // namespace

const Key* FindKey(std::string_view pointer) {
  static const std::unordered_map<std::string_view, const Key*> kByPointer = [] {
    std::unordered_map<std::string_view, const Key*> by_pointer;
    for (const Key& key : Keys())
      by_pointer.emplace(key.pointer, &key);  // The first of a name, should there be two.
    return by_pointer;
  }();
  const auto found = kByPointer.find(pointer);
  return found == kByPointer.end() ? nullptr : found->second;
}

std::vector<std::string> KeyNames(std::string_view section, std::string_view type) {
  std::vector<std::string> names;
  for (const Key& key : Keys()) {
    std::string_view pointer = key.pointer;
    if (Parent(pointer) != section) continue;
    if (*key.variants != '\0' && !IsOneOf(type, key.variants)) continue;
    names.emplace_back(pointer.substr(section.size() + 1));
  }
  return names;
}

bool IsOneOf(std::string_view text, std::string_view words) {
  while (!words.empty()) {
    std::string_view word = words.substr(0, words.find(' '));
    if (word == text) return true;
    words.remove_prefix(std::min(word.size() + 1, words.size()));
  }
  return false;
}

const Json& DefaultValue(const Key& key) {
  static const std::vector<Json> kDefaults = [] {
    std::vector<Json> defaults;
    for (const Key& each : Keys())
      defaults.push_back(each.type == KeyType::kAlias ? Json() : Json::parse(each.fallback));
    return defaults;
  }();
  return kDefaults.at(static_cast<size_t>(&key - Keys().data()));
}

std::string Expected(const Key& key) {
  switch (key.type) {
    case KeyType::kSection:
    case KeyType::kOpenSection:
      return "an object";
    case KeyType::kBool:
      return "true or false";
    case KeyType::kInt:
    case KeyType::kStage:
      return "an integer" + RangeText(key);
    case KeyType::kNumber:
      return "a number" + RangeText(key);
    case KeyType::kText:
      return *key.choices == '\0' ? "a string" : fmt::format("one of {}", key.choices);
    case KeyType::kNumbers:
      return "two numbers" + RangeText(key);
    case KeyType::kAny:
      return "any value";
    case KeyType::kAlias:
      return Expected(*FindKey(key.fallback));
  }
  return "";
}

std::string Misfit(const Key& key, const Json& value) {
  return Fits(key, value) ? "" : Expected(key);
}

}  // namespace dsat::engine
