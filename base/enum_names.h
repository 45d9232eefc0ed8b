// The names of an enum's values in text and JSON, from one table for both directions.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace dsat {

template <typename Enum, size_t kSize>
using EnumNames = std::array<std::pair<Enum, const char*>, kSize>;

// REQUIRES: `names` has the value.
template <typename Enum, size_t kSize>
std::string NameOf(const EnumNames<Enum, kSize>& names, Enum value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  DSAT_CHECK(false, "no name for the value {}", static_cast<int>(value));
  return "";
}

// Throws kInvalidArgument naming `what` if no value has the name.
template <typename Enum, size_t kSize>
Enum ParseName(const EnumNames<Enum, kSize>& names, std::string_view text, std::string_view what) {
  std::string expected;
  for (const auto& [value, name] : names) {
    if (text == name) return value;
    expected += (expected.empty() ? "" : ", ") + std::string(name);
  }
  Throw(ErrorCode::kInvalidArgument, "{} is \"{}\"; expected one of {}", what, text, expected);
}

}  // namespace dsat
