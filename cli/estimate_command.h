// dsat estimate: predicts memory, traffic and time of a configuration on a described cluster.
#ifndef DSAT_CLI_ESTIMATE_COMMAND_H_
#define DSAT_CLI_ESTIMATE_COMMAND_H_

#include "cli/flags.h"

namespace dsat::cli {

// Returns the exit code. Throws Error on bad input. `flags` is the whole command line (--db,
// --json).
int RunCommand(const Flags& flags, const EstimateFlags& estimate);

}  // namespace dsat::cli

#endif  // DSAT_CLI_ESTIMATE_COMMAND_H_
