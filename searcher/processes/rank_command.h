// The commands of ranks that a supervisor gets, and its report about their end.
#ifndef DSAT_SEARCHER_PROCESSES_RANK_COMMAND_H_
#define DSAT_SEARCHER_PROCESSES_RANK_COMMAND_H_

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dsat {

// The command of one rank, with its environment on top of ours.
struct RankCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::string log_path;  // stdout and stderr of this rank; an existing file is replaced,
                         // or continued with `continues_log`.
  std::string work_dir;  // "" = the one given to SupervisedProcess::Start.
  int64_t host = 0;      // Index of the hosts given to SupervisedProcess::Start.
  std::vector<std::string> files = {};  // Files in the attempt's folder that the rank reads. A host
                                        // that does not share the folder gets copies.
  bool continues_log = false;
  bool shares_folder = false;  // True if files that the rank writes there are needed here.
  // The MASTER_PORT of DeepSpeed's CPU collectives, 0 if it is unknown: when the ranks are gone,
  // the supervisor of their host removes the buffers (searcher/scripts/shared_buffers.h).
  int64_t buffers_port = 0;
};

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
  int exit_code = 0;          // Of that rank; 128 + signal if it was killed, 127 if not runnable.
  bool not_started = false;   // The supervisor could not start the ranks, as on a full disk.
  bool killed_by_us = false;  // Stopped by the runner (time-out, cancel) before a rank failed.
  int64_t oom_kills = 0;      // Processes that the kernel killed meanwhile for lack of host memory,
                              // in our cgroup, or on this host if the cgroup does not count them.
  std::vector<int> exit_codes{};         // By rank, as exit_code; empty if the supervisor was lost.
  std::chrono::milliseconds elapsed{0};  // From the first fork to the end of the last process.
  std::string log_tail{};                // Last lines of that rank's log, or of rank 0's.
  int64_t lost_host = -1;  // The host of that rank, if its connection ended without a report or
                           // its supervisor could not start the ranks.
};

// How long processes may take to end by themselves.
struct GraceTimes {
  std::chrono::milliseconds siblings{2000};   // From a rank's failure to SIGTERM for the others.
  std::chrono::milliseconds terminate{2000};  // From SIGTERM to SIGKILL.
  // After this time without a message, a supervisor on another host assumes that the runner is
  // gone: a broken connection may not be noticed at either end.
  std::chrono::milliseconds silence{60'000};
  // From the end of the grace time of a stop to SIGKILL for a supervisor that has not ended: longer
  // than it tries to kill a process that hangs in the kernel.
  std::chrono::milliseconds frozen{25'000};
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_RANK_COMMAND_H_
