// Starts a process whose standard input and output are one socket.
#ifndef DSAT_SEARCHER_PROCESSES_SPAWN_H_
#define DSAT_SEARCHER_PROCESSES_SPAWN_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace dsat {

struct Spawned {
  pid_t pid;
  UniqueFd socket;  // The other end of its standard input and output.
};

// Starts the program words[0], which is looked for in PATH, in a session of its own with default
// signal settings. `error_fd` becomes its standard error, which is ours if it is -1; it inherits no
// other files. Throws an Error naming `what` if it cannot be started.
Spawned Spawn(std::vector<std::string> words, int error_fd, const std::string& what);

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_SPAWN_H_
