// Describes how ranks ended, and finds the lines of their logs that say why.
#include "searcher/processes/exit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/files.h"
#include "base/regex.h"

namespace dsat {

std::string_view LineAround(std::string_view text, size_t position) {
  const size_t before = text.rfind('\n', position);
  const size_t begin = before == std::string_view::npos ? 0 : before + 1;
  return text.substr(begin, text.find('\n', position) - begin);
}

std::string WithoutColors(std::string_view text) {
  static const RE2 kColor(R"(\x1b\[[0-9;]*[A-Za-z])", RegexOptions());
  std::string plain(text);
  RE2::GlobalReplace(&plain, kColor, "");
  return plain;
}

std::string Quote(std::string_view line) {
  return Trimmed(line).substr(0, kMaxQuoteBytes);
}

int DistanceFromCause(const std::string& error) {
  static const RE2 kLost(R"(Connection (closed|reset) by peer|Broken pipe)", RegexOptions());
  static const RE2 kCollective(R"(gloo|ncclRemoteError|ProcessGroupNCCL)", RegexOptions());
  if (RE2::PartialMatch(error, kLost)) return 2;
  return RE2::PartialMatch(error, kCollective) ? 1 : 0;
}

std::string LastError(std::string_view text) {
  static const RE2 kError(
      R"((^|\s)[A-Za-z_.]*(Error|Exception|Interrupt)\b|Fatal Python|^what\(\): )"
      R"(|^(\S+: )?error: |: can't open file )",  // An argument parser's, and Python's.
      RegexOptions());
  // A syntax error has no line of source in the traceback that would tell the script.
  static const RE2 kPlace(R"re(^\s*File ("[^"]+", line \d+)$)re", RegexOptions());
  static const RE2 kSyntax(R"(^(Syntax|Indentation|Tab)Error\b)", RegexOptions());
  std::string last, last_lost, place;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = Quote(WithoutColors(text.substr(begin, end - begin)));
    RE2::PartialMatch(line, kPlace, &place);
    if (!place.empty() && RE2::PartialMatch(line, kSyntax)) line += fmt::format(" ({})", place);
    // Launchers repeat that their ranks have failed.
    const bool echo = line.find("ChildFailedError") != std::string::npos ||
                      line.find("CalledProcessError") != std::string::npos;
    if (!echo && RE2::PartialMatch(line, kError))
      (DistanceFromCause(line) > 0 ? last_lost : last) = line;
    begin = end + 1;
  }
  return last.empty() ? last_lost : last;
}

std::string LastLine(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  return last == std::string_view::npos ? "" : Quote(WithoutColors(LineAround(text, last)));
}

std::string LastErrorOrLine(std::string_view text) {
  std::string last = LastError(text);
  return last.empty() ? LastLine(text) : last;
}

std::string KilledForHostMemory(const ExitReport& exit, std::string_view process) {
  if (exit.first_failed_rank < 0 || exit.exit_code != 128 + SIGKILL || exit.oom_kills <= 0)
    return "";
  return fmt::format("{}: the kernel killed {} {}", kNoHostMemory, process, exit.first_failed_rank);
}

std::string DescribeExit(const ExitReport& exit, std::string_view process) {
  if (exit.lost_host >= 0) {
    return fmt::format("{} {} failed because of its host: {}", process, exit.first_failed_rank,
                       LastLine(exit.log_tail));
  }
  const int signal_number = exit.exit_code - 128;
  const char* const name =
      signal_number > 0 && signal_number < NSIG ? sigdescr_np(signal_number) : nullptr;
  std::string text = fmt::format("{} {} ", process, exit.first_failed_rank);
  if (name != nullptr) {
    text += fmt::format("was killed by signal {} ({})", signal_number, name);
  } else {
    text += fmt::format("exited with code {}", exit.exit_code);
  }
  if (signal_number == SIGBUS) text += "; /dev/shm may be full, or a data file was cut short";
  // A killed process has not said why.
  std::string last = LastError(exit.log_tail);
  if (last.empty() && name == nullptr) last = LastLine(exit.log_tail);
  return last.empty() ? text : text + ": " + last;
}

std::optional<int64_t> FindCounter(std::string_view text, std::string_view key) {
  const RE2 counter(R"((?m)^)" + RE2::QuoteMeta(Piece(key)) + R"( (\d+))", RegexOptions());
  int64_t value = 0;
  return RE2::PartialMatch(Piece(text), counter, &value) ? std::optional(value) : std::nullopt;
}

// Lines are "number:controllers:path"; version 2 is "0::path". A mixed system has both, and the
// memory controller is then in version 1.
std::optional<MemoryCgroup> FindMemoryCgroup(std::string_view proc_self_cgroup) {
  for (const bool v1 : {true, false}) {
    const RE2 line(v1 ? R"((?m)^[^:\n]*:memory:(.*)$)" : R"((?m)^[^:\n]*::(.*)$)", RegexOptions());
    std::string path;
    if (RE2::PartialMatch(Piece(proc_self_cgroup), line, &path)) return MemoryCgroup{v1, path};
  }
  return std::nullopt;
}

std::optional<int64_t> CountOomKills() {
  const std::optional<MemoryCgroup> cgroup = FindMemoryCgroup(ReadOrEmpty("/proc/self/cgroup"));
  if (cgroup) {
    const std::string file = cgroup->v1
                                 ? "/sys/fs/cgroup/memory" + cgroup->path + "/memory.oom_control"
                                 : "/sys/fs/cgroup" + cgroup->path + "/memory.events";
    if (const auto count = FindCounter(ReadOrEmpty(file), "oom_kill")) return count;
  }
  return FindCounter(ReadOrEmpty("/proc/vmstat"), "oom_kill");
}

}  // namespace dsat
