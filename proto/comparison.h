// Conditions on the configurations of a search, from the section `where` of an experiment file.
#pragma once

#include <functional>
#include <string>

#include "base/json.h"

namespace dsat {

// The comparison of a key with another key or with a constant.
struct Comparison {
  std::string text;   // As the user wrote it.
  std::string left;   // A JSON pointer in a trial's config.
  std::string op;     // "<", "<=", ">", ">=", "==" or "!=".
  std::string right;  // Likewise a pointer; "" if it is `constant`.
  Json constant;      // A number, a boolean or a text.
};

// Reads "KEY OP KEY", "KEY OP CONSTANT" or "CONSTANT OP KEY"; the last one is turned around, with
// the key on the left. Throws kInvalidArgument if it is none of these.
Comparison ParseComparison(const std::string& text);

// Whether `op` compares such values: two numbers, or two equal types with "==" and "!=".
bool CanCompare(const std::string& op, const Json& left, const Json& right);

// Whether the comparison is true of a configuration. `value_of` gives the value at a pointer, null
// if there is none. A comparison of values that cannot be compared is true.
using PointerValue = std::function<Json(const std::string& pointer)>;
bool Holds(const Comparison& comparison, const PointerValue& value_of);

}  // namespace dsat
