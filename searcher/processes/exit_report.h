// The report of how ranks ended, in words, and the lines of their logs that say why.
#pragma once

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsat {

// Whether a signal from outside or a fault ended a process. A rank that loses a peer exits with an
// error instead, or aborts.
inline bool Crashed(int exit_code) {
  const int signal_number = exit_code - 128;
  return signal_number > 0 && signal_number < NSIG && signal_number != SIGABRT &&
         signal_number != SIGTERM;
}

// How processes ended.
struct ExitReport {
  // The first rank that crashed or, if none did, the first that failed by itself; -1: none did.
  // Ends may be noticed in another order than the one in which they happened.
  int first_failed_rank = -1;
  int exit_code = 0;          // The rank's; 128 + signal if it was killed, 127 if not runnable.
  bool not_started = false;   // The supervisor could not start the ranks, as on a full disk.
  bool killed_by_us = false;  // Stopped by the runner (time-out, cancel) before a rank failed.
  int64_t oom_kills = 0;      // Processes that the kernel killed meanwhile for lack of host memory,
                              // in our cgroup, or on this host if the cgroup does not count them.
  std::vector<int> exit_codes{};  // By rank, as exit_code; empty if the supervisor was lost.
  std::string log_tail{};         // Last lines of that rank's log, or of rank 0's.
  int64_t lost_host = -1;  // The host of that rank, if its connection ended without a report or
                           // its supervisor could not start the ranks.
};

// "rank 1 exited with code 3: <the last error or line>", "rank 0 was killed by signal 9 (Killed)".
// `process` is the name of what the number counts. REQUIRES: a rank has failed.
std::string DescribeExit(const ExitReport& exit, std::string_view process = "rank");

inline constexpr char kNoHostMemory[] = "out of host memory";
// Begins with kNoHostMemory and says that the kernel killed the failed rank; "" if it did not.
// `process` as DescribeExit's.
std::string KilledForHostMemory(const ExitReport& exit, std::string_view process = "rank");

// The last line of `text` that is not blank, at most kMaxQuoteBytes of it; "" if there is none.
std::string LastLine(std::string_view text);

// The last line that reports an exception, a crash or wrong arguments, if possible no rank's that
// has lost others, which is a consequence; "" if there is none.
std::string LastError(std::string_view text);

// How far an error is from the cause of a failure: 0 if it may be the cause, 1 if it is of a
// collective, which may have failed because another rank has, 2 if a connection was lost.
int DistanceFromCause(const std::string& error);

// LastError, or LastLine if there is none.
std::string LastErrorOrLine(std::string_view text);

// The line of `text` that contains the byte at `position`.
std::string_view LineAround(std::string_view text, size_t position);

// `text` without the codes of a terminal's colors.
std::string WithoutColors(std::string_view text);

// `line` without blanks around it, at most kMaxQuoteBytes of it.
inline constexpr size_t kMaxQuoteBytes = 1000;
std::string Quote(std::string_view line);

// The number of processes that the kernel's out-of-memory killer has killed so far, in our control
// group (version 2 or 1) if it counts them, else on this host. nullopt if there is no counter.
std::optional<int64_t> CountOomKills();

// The value of `key` in lines of "key value", as in /proc/vmstat and memory.events.
std::optional<int64_t> FindCounter(std::string_view text, std::string_view key);

// The path of this process's memory control group below its mount, from the text of
// /proc/self/cgroup: "/unified/path" for version 2, "/memory/path" for version 1 (`v1` is set).
struct MemoryCgroup {
  bool v1 = false;
  std::string path;
};
std::optional<MemoryCgroup> FindMemoryCgroup(std::string_view proc_self_cgroup);

}  // namespace dsat
