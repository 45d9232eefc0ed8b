// Reads and evaluates comparisons.
#include "proto/comparison.h"

#include <array>
#include <sstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "proto/launch_settings.h"

namespace dsat {
namespace {

// Operators, and what they become with the sides exchanged.
constexpr std::array<std::pair<const char*, const char*>, 6> kOperators = {
    {{"<", ">"}, {"<=", ">="}, {">", "<"}, {">=", "<="}, {"==", "=="}, {"!=", "!="}}};

const char* Exchanged(const std::string& op) {
  for (const auto& [known, exchanged] : kOperators) {
    if (op == known) return exchanged;
  }
  return nullptr;
}

// JSON where it is a number, a boolean or a quoted text; else a text as it stands.
Json ConstantOf(const std::string& word) {
  Json value = Json::parse(word, nullptr, /*allow_exceptions=*/false);
  return value.is_number() || value.is_boolean() || value.is_string() ? value : Json(word);
}

bool Compare(const std::string& op, const Json& left, const Json& right) {
  if (op == "<") return left < right;
  if (op == "<=") return left <= right;
  if (op == ">") return left > right;
  if (op == ">=") return left >= right;
  return (left == right) == (op == "==");
}

}  // namespace

Comparison ParseComparison(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;)
    words.push_back(word);
  const char* const exchanged = words.size() == 3 ? Exchanged(words[1]) : nullptr;
  if (exchanged == nullptr) {
    Throw(ErrorCode::kInvalidArgument,
          "is \"{}\"; expected KEY OP KEY or KEY OP CONSTANT with blanks between them, where OP is "
          "<, <=, >, >=, == or !=",
          text);
  }
  Comparison comparison{text, PointerOfName(words[0]), words[1], PointerOfName(words[2]), {}};
  if (comparison.left.empty()) {
    std::swap(comparison.left, comparison.right);
    std::swap(words[0], words[2]);
    comparison.op = exchanged;
  }
  if (comparison.left.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "is \"{}\", which has no key; expected one such as "
          "/zero_optimization/reduce_bucket_size, arguments.--flag or environment.NAME",
          text);
  }
  if (comparison.right.empty()) comparison.constant = ConstantOf(words[2]);
  return comparison;
}

bool CanCompare(const std::string& op, const Json& left, const Json& right) {
  if (left.is_number() && right.is_number()) return true;
  const bool same =
      (left.is_boolean() && right.is_boolean()) || (left.is_string() && right.is_string());
  return same && (op == "==" || op == "!=");
}

bool Holds(const Comparison& comparison, const PointerValue& value_of) {
  const Json left = value_of(comparison.left);
  const Json right = comparison.right.empty() ? comparison.constant : value_of(comparison.right);
  return !CanCompare(comparison.op, left, right) || Compare(comparison.op, left, right);
}

}  // namespace dsat
