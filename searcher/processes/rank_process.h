// Starts one rank of a supervisor.
#ifndef DSAT_SEARCHER_PROCESSES_RANK_PROCESS_H_
#define DSAT_SEARCHER_PROCESSES_RANK_PROCESS_H_

#include <sys/types.h>

#include <string>

#include "searcher/processes/rank_command.h"

namespace dsat {

// Forks and runs `command` in `work_dir`, in a new process group, with empty standard input, output
// and errors in its log, default signal settings, and no open files except `group_fd`, the memory
// file that the ranks share (engine/runtime/rank_variables.h). The rank is killed when this process
// dies, and is the kernel's first choice when host memory runs out. Throws if the log cannot be
// written or fork fails. A command that cannot be run writes an error to its log and exits with
// 127. REQUIRES: this process has one thread; file descriptors 0, 1, 2 are open.
pid_t StartRank(const RankCommand& command, const std::string& work_dir, int group_fd);

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_RANK_PROCESS_H_
