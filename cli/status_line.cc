// A line at the bottom of a terminal.
#include "cli/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace dsat::cli {
namespace {

constexpr char kClear[] = "\r\x1b[K";

// Whether the terminal, such as Emacs's shell, cannot clear a line.
bool IsDumb() {
  const char* const term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) == "dumb";
}

}  // namespace

void Say(std::FILE* out, const std::string& text) {
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

StatusLine::StatusLine() : live_(isatty(STDERR_FILENO) != 0 && !IsDumb()) {
  if (live_) SetLogPrefix(kClear);
}

StatusLine::~StatusLine() {
  Clear();
  SetLogPrefix("");
}

void StatusLine::Draw(const std::vector<std::string>& parts) {
  if (!live_) return;
  const size_t columns = TerminalColumns(STDERR_FILENO);
  std::string line;
  for (const std::string& part : parts) {
    // The last column stays free: writing it makes some terminals wrap.
    if (line.size() + part.size() < columns) line += part;
  }
  if (line == std::exchange(shown_, line)) return;
  Say(stderr, kClear + line);
}

void StatusLine::Clear() {
  if (!shown_.empty()) Say(stderr, kClear);
  shown_.clear();
}

size_t TerminalColumns(int fd) {
  if (isatty(fd) == 0) return 0;
  winsize size{};
  const bool known = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

double SecondsLeft(std::chrono::steady_clock::time_point started, int64_t done, int64_t all) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
  return elapsed.count() / static_cast<double>(done) * static_cast<double>(all - done);
}

std::string DescribeDuration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace dsat::cli
