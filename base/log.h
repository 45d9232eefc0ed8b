// One `key=value` line per fact on stderr. stdout belongs to results; logs are never data.
#ifndef DSAT_BASE_LOG_H_
#define DSAT_BASE_LOG_H_

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace dsat {

enum class LogLevel { kInfo, kWarn, kError };

// One key and its value as text; values with blanks or quotes are printed quoted.
struct LogField {
  template <typename T>
  LogField(std::string_view k, const T& v) : key(k), value(fmt::format("{}", v)) {}
  std::string key;
  std::string value;
};

// Writes "I 12:04:31.207 trial finished trial=7 state=infeasible" as one write, so that lines of
// several threads and processes do not mix. Lines below the minimum level are dropped. Thread-safe.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// Drops lines below `level` from now on. Called from main files only.
void SetMinLogLevel(LogLevel level);

}  // namespace dsat

#endif  // DSAT_BASE_LOG_H_
