// Processes and the descendants of this one, found through /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace dsat {

struct ProcessStat {
  char state = 0;  // As in ps: T is stopped by a signal.
  pid_t parent = 0;
  pid_t group = 0;
  // Processor time of the process, and of its ended children that it has waited for, in ticks of
  // sysconf(_SC_CLK_TCK).
  int64_t ticks = 0;
};
// Reads the text of /proc/PID/stat; nullopt if the text has another form.
std::optional<ProcessStat> ParseProcessStat(const std::string& text);
// nullopt if the process has ended.
std::optional<ProcessStat> StatOf(pid_t pid);
// All processes of this machine that can be seen.
std::vector<pid_t> AllProcesses();

// A descriptor of a process that is readable after its end; empty if there is no such process.
UniqueFd OpenProcess(pid_t pid);

// The children of a process, including zombies; empty if it has ended.
std::vector<pid_t> ChildrenOf(pid_t pid);

// Sends `signal_number` to all descendants of this process. SIGKILL is also sent to their process
// groups, which a process cannot escape by forking. A process that is created meanwhile may be
// missed: call it again until there are no children. REQUIRES: this process leads its session, has
// one thread and is a child subreaper.
void SignalDescendants(int signal_number);

}  // namespace dsat
