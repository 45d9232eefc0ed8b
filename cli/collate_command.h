// dsat collate: converts a checkpoint of any number of ranks to one file that other programs read.
#ifndef DSAT_CLI_COLLATE_COMMAND_H_
#define DSAT_CLI_COLLATE_COMMAND_H_

#include "cli/flags.h"

namespace dsat::cli {

// Returns the exit code. Throws Error on bad input. `flags` is the whole command line (--db,
// --json).
int RunCommand(const Flags& flags, const CollateFlags& collate);

}  // namespace dsat::cli

#endif  // DSAT_CLI_COLLATE_COMMAND_H_
