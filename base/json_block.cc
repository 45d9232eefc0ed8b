// Reads an object of a user's file key by key and checks the values.
#include "base/json_block.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

std::string Suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string nearest = NearestWord(word, candidates);
  if (!nearest.empty()) return fmt::format("did you mean \"{}\"?", nearest);
  return fmt::format("expected one of {}", fmt::join(candidates, ", "));
}

// "in [1, 5]", or ">= 1" without an upper limit.
template <typename T>
std::string RangeText(T min, T max) {
  const bool has_limit = max != std::numeric_limits<T>::max();
  return has_limit ? fmt::format("in [{}, {}]", min, max) : fmt::format(">= {}", min);
}

}  // namespace

JsonBlock::JsonBlock(const Json& object, std::string what)
    : object_(object), what_(std::move(what)) {
  if (!object.is_object()) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected an object", what_, JsonTypeName(object));
  }
}

void JsonBlock::CheckKeys(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    Throw(ErrorCode::kInvalidArgument, "{}: unknown key; {}", PointerTo(key),
          Suggestion(key, known));
  }
}

const Json& JsonBlock::At(const std::string& key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) Throw(ErrorCode::kInvalidArgument, "{} is missing", PointerTo(key));
  return *found;
}

int64_t JsonBlock::Int(const std::string& key, int64_t fallback, int64_t min, int64_t max) const {
  return Has(key) ? IntInRange(object_.at(key), min, max, PointerTo(key)) : fallback;
}

double JsonBlock::Number(const std::string& key, double fallback, double min, double max) const {
  if (!Has(key)) return fallback;
  const Json& value = object_.at(key);
  if (value.is_number() && value >= min && value <= max) return value;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a number {}", PointerTo(key), value.dump(),
        RangeText(min, max));
}

bool JsonBlock::Bool(const std::string& key, bool fallback) const {
  if (!Has(key)) return fallback;
  const Json& value = object_.at(key);
  if (value.is_boolean()) return value;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; expected true or false", PointerTo(key),
        value.dump());
}

std::string JsonBlock::Word(const std::string& key, const std::vector<std::string>& words) const {
  const Json& value = At(key);
  const std::string word = value.is_string() ? value.get<std::string>() : "";
  if (value.is_string() && std::ranges::find(words, word) != words.end()) return word;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; {}", PointerTo(key), value.dump(),
        Suggestion(word, words));
}

std::string JsonBlock::PointerTo(std::string_view key) const {
  return fmt::format("{}/{}", what_, key);
}

int64_t IntInRange(const Json& value, int64_t min, int64_t max, const std::string& what) {
  const std::optional<int64_t> number = WholeNumber(value);
  if (number && *number >= min && *number <= max) return *number;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a whole number {}", what, value.dump(),
        RangeText(min, max));
}

}  // namespace dsat
