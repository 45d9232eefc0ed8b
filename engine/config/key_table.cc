// Look-ups in the key table, and the check of one value.
#include "engine/config/key_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

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

}  // namespace

KeyTable::KeyTable(std::vector<Key> rows) : rows_(std::move(rows)) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Key& key = rows_[i];
    by_pointer_.emplace(key.pointer, i);  // The first one of a pointer, should there be two.
    const bool alias = key.type == KeyType::kAlias;
    defaults_.push_back(alias ? Json() : Json::parse(key.fallback));
    const bool by_stage = key.fallback_stage < kNumZeroStages;
    stage_defaults_.push_back(by_stage ? Json::parse(key.stage_fallback) : defaults_.back());
    const bool by_type = *key.fallback_type != '\0';
    type_defaults_.push_back(by_type ? Json::parse(key.type_fallback) : defaults_.back());
  }
}

const Key* KeyTable::Find(std::string_view pointer) const {
  const auto found = by_pointer_.find(pointer);
  return found == by_pointer_.end() ? nullptr : &rows_[found->second];
}

const Key& KeyTable::Target(const Key& key) const {
  if (key.type != KeyType::kAlias) return key;
  const Key* target = Find(key.fallback);
  DSAT_CHECK(target != nullptr, "{} stands for {}, which is not in the table", key.pointer,
             key.fallback);
  return *target;
}

std::vector<std::string> KeyTable::Names(std::string_view section, std::string_view type) const {
  std::vector<std::string> names;
  for (const Key& key : rows_) {
    const std::string_view pointer = key.pointer;
    if (Parent(pointer) != section) continue;
    if (*key.variants != '\0' && !IsOneOf(type, key.variants)) continue;
    names.emplace_back(pointer.substr(section.size() + 1));
  }
  const Key* const row = Find(section);
  std::istringstream members(row == nullptr ? "" : row->members);
  names.insert(names.end(), std::istream_iterator<std::string>(members), {});
  return names;
}

const Json& KeyTable::Default(const Key& key, int stage, std::string_view type) const {
  const auto row = static_cast<size_t>(&key - rows_.data());
  if (!type.empty() && type == key.fallback_type) return type_defaults_.at(row);
  return (stage < key.fallback_stage ? defaults_ : stage_defaults_).at(row);
}

bool IsOneOf(std::string_view text, std::string_view words) {
  while (!words.empty()) {
    std::string_view word = words.substr(0, words.find(' '));
    if (word == text) return true;
    words.remove_prefix(std::min(word.size() + 1, words.size()));
  }
  return false;
}

std::string KeyTable::Expected(const Key& key) const {
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
      return Expected(Target(key));
  }
  return "";
}

bool KeyTable::Fits(const Key& key, const Json& value) const {
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
      return Fits(Target(key), value);
  }
  return false;
}

std::string KeyTable::Misfit(const Key& key, const Json& value) const {
  return Fits(key, value) ? "" : Expected(key);
}

}  // namespace dsat::engine
