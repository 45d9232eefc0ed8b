// Starting one rank from the supervisor.
#ifndef DSAT_SEARCHER_PROCESSES_RANK_PROCESS_H_
#define DSAT_SEARCHER_PROCESSES_RANK_PROCESS_H_

#include <sys/types.h>

#include <string>

#include "searcher/processes/rank_command.h"

namespace dsat {

// Forks and runs `command` in `work_dir`, in a process group of its own: standard input empty,
// output and errors to its log, signals as a fresh process has them, no open files but `group_fd`,
// the memory file shared by the ranks (engine/runtime/rank_variables.h). The rank dies with this
// process and is the kernel's preferred victim when host memory runs out. Throws if the log cannot
// be written or fork fails; a command that cannot be run says so in its log and exits with 127.
// REQUIRES: this process has one thread; file descriptors 0, 1, 2 are open.
pid_t StartRank(const RankCommand& command, const std::string& work_dir, int group_fd);

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_RANK_PROCESS_H_
