// Reads a number from text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace dsat {

// The number that the whole of `text` is, without blanks or a plus sign; nullopt if it is none, or
// if `Number` cannot hold it.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace dsat
