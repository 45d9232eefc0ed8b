// Log lines with key=value fields on standard error.
#include "base/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

std::atomic<const char*> log_prefix = "";

std::string Quoted(const std::string& value) {
  if (!value.empty() && value.find_first_of(" \t\n\"=") == std::string::npos)
    return Printable(value);
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return Printable(out) + '"';
}

}  // namespace

void SetLogPrefix(const char* prefix) {
  log_prefix = prefix;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  timeval now{};
  gettimeofday(&now, nullptr);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  std::string line =
      fmt::format("{}{} {:02}:{:02}:{:02}.{:03} {}", log_prefix.load(),
                  "IWE"[static_cast<int>(level)], local.tm_hour, local.tm_min, local.tm_sec,
                  now.tv_usec / 1000, Printable(WithShortWords(std::string(message))));
  for (const LogField& field : fields)
    line += fmt::format(" {}={}", field.key, Quoted(field.value));
  line += '\n';
  // A log line that cannot be written has nowhere to be reported.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace dsat
