// Starts a process whose standard input and output are one socket.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace dsat {

// The exit code of a process that cannot become its program, as of a shell.
inline constexpr int kExitNotRunnable = 127;

struct Spawned {
  pid_t pid;
  UniqueFd socket;  // The other end of its standard input and output.
};

// Starts the program words[0], which is looked for in PATH, in a session of its own with default
// signal settings. `error_fd` becomes its standard error, which is ours if it is -1; it inherits no
// other files. When the calling thread ends, the kernel sends it `death_signal`: SIGCONT, so that
// one that is stopped sees the end of the socket, or one that ends it. Throws an Error naming
// `what` if it cannot be started.
Spawned Spawn(std::vector<std::string> words, int error_fd, const std::string& what,
              int death_signal = SIGCONT);

// Gives this process the default signal settings, and no blocked signals. Async-signal-safe.
void ResetSignals();

}  // namespace dsat
