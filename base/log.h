// Log lines with key=value fields on standard error. Standard output is for results only.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace dsat {

enum class LogLevel { kInfo, kWarn, kError };

// One key and its value as text; a value with blanks or quotes is printed in quotes.
struct LogField {
  template <typename T>
  LogField(std::string_view k, const T& v) : key(k), value(fmt::format("{}", v)) {}
  std::string key;
  std::string value;
};

// Writes a line such as "I 12:04:31.207 trial finished trial=7 state=infeasible" by one write(), so
// that the lines of several threads and processes do not mix. Thread-safe.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// Writes `prefix` before every line from now on, such as what clears a line on a terminal. It must
// stay valid.
void SetLogPrefix(const char* prefix);

}  // namespace dsat
