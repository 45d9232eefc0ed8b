// dsat space: what a search would choose from.
#ifndef DSAT_CLI_SPACE_COMMAND_H_
#define DSAT_CLI_SPACE_COMMAND_H_

#include "cli/flags.h"

namespace dsat::cli {

// Returns the exit code and throws Error on bad input.
int RunCommand(const Flags& flags, const SpaceFlags& space);

}  // namespace dsat::cli

#endif  // DSAT_CLI_SPACE_COMMAND_H_
