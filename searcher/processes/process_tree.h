// The processes below this one, found through /proc.
#ifndef DSAT_SEARCHER_PROCESSES_PROCESS_TREE_H_
#define DSAT_SEARCHER_PROCESSES_PROCESS_TREE_H_

#include <sys/types.h>

#include <vector>

#include "base/unique_fd.h"

namespace dsat {

// A descriptor of a process, readable once it has ended; owns none if there is no such process.
UniqueFd OpenProcess(pid_t pid);

// The children of a process, zombies included; empty if it has ended.
std::vector<pid_t> ChildrenOf(pid_t pid);

// One pass over all descendants of this process, each sent `signal_number`. With SIGKILL their
// process groups are killed too, which a process cannot outrun by forking. A process that is born
// meanwhile may be missed: repeat until there are no children.
// REQUIRES: this process leads its session, has one thread and is a child subreaper.
void SignalDescendants(int signal_number);

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_PROCESS_TREE_H_
