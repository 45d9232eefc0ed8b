// dsat check: measures a configuration against the submitted one and against what was recorded.
#ifndef DSAT_CLI_CHECK_COMMAND_H_
#define DSAT_CLI_CHECK_COMMAND_H_

#include "cli/flags.h"

namespace dsat::cli {

// Prints the factor with its interval. Returns 1 if the configuration is slower than recorded on
// this machine by more than the tolerance.
int RunCommand(const Flags& flags, const CheckFlags& check);

}  // namespace dsat::cli

#endif  // DSAT_CLI_CHECK_COMMAND_H_
