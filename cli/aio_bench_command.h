// dsat aio-bench: measures the `aio` settings with which a folder is written and read fastest.
#ifndef DSAT_CLI_AIO_BENCH_COMMAND_H_
#define DSAT_CLI_AIO_BENCH_COMMAND_H_

#include "cli/flags.h"

namespace dsat::cli {

// Returns the exit code. Throws Error on bad input. `flags` is the whole command line (--db,
// --json).
int RunCommand(const Flags& flags, const AioBenchFlags& bench);

}  // namespace dsat::cli

#endif  // DSAT_CLI_AIO_BENCH_COMMAND_H_
