// Writing to people: text that may get lost, and a line at the bottom of a terminal that is drawn
// again and again.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace dsat::cli {

// Writes `text` and does not throw, because work must not end when its output cannot be shown.
// main() notices if standard output did not take everything.
void Say(std::FILE* out, const std::string& text);

// On stderr, where lines of the log replace it. Does nothing if that is not a terminal, or a dumb
// one.
class StatusLine {
 public:
  StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine();

  bool live() const { return live_; }
  // Draws those of `parts`, in order, that fit into the terminal, because a line that wraps cannot
  // be redrawn.
  void Draw(const std::vector<std::string>& parts);
  // Leaves the cursor on an empty line, for a text that stays.
  void Clear();

 private:
  bool live_;
  std::string shown_;  // "" if nothing is.
};

// The number of columns of the terminal of a file descriptor, 0 if it is not a terminal.
size_t TerminalColumns(int fd);

// The time that the remaining parts of a work take if `done` of `all` parts are done, at the rate
// since `started`. REQUIRES: done > 0.
double SecondsLeft(std::chrono::steady_clock::time_point started, int64_t done, int64_t all);

// "12 s", "3 min 05 s", "2 h 07 min".
std::string DescribeDuration(double seconds);

}  // namespace dsat::cli
