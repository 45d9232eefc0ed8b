// The names of an enum's values in text, JSON and the database, from one table for both directions:
// what NamesOf(value) of the enum's namespace returns.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace dsat {

template <typename Enum, size_t kSize>
struct EnumNames {
  const char* what;  // The enum in messages: "trial kind".
  std::array<std::pair<Enum, const char*>, kSize> names;
};

template <typename Enum>
concept NamedEnum = requires(Enum value) {
  NamesOf(value).names;
};

// REQUIRES: the table has the value.
template <NamedEnum Enum>
std::string ToString(Enum value) {
  for (const auto& [known, name] : NamesOf(value).names) {
    if (known == value) return name;
  }
  DSAT_CHECK(false, "no name for the value {}", static_cast<int>(value));
  return "";
}

// Throws kInvalidArgument naming the text and the valid names if no value has the name.
template <typename Enum, size_t kSize>
Enum ParseName(const EnumNames<Enum, kSize>& table, std::string_view text) {
  std::string expected;
  for (const auto& [value, name] : table.names) {
    if (text == name) return value;
    expected += (expected.empty() ? "" : ", ") + std::string(name);
  }
  Throw(ErrorCode::kInvalidArgument, "{} is \"{}\"; expected one of {}", table.what, text,
        expected);
}

// ParseName with the enum's own table.
template <NamedEnum Enum>
Enum Parse(std::string_view text) {
  return ParseName(NamesOf(Enum()), text);
}

}  // namespace dsat
