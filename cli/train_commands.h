// dsat train, and dsat supervise, which is not shown in the help.
#ifndef DSAT_CLI_TRAIN_COMMANDS_H_
#define DSAT_CLI_TRAIN_COMMANDS_H_

#include "cli/flags.h"

namespace dsat::cli {

// Each returns the exit code and throws Error on bad input. `flags` is the whole command line
// (--db, --json).
int RunCommand(const Flags& flags, const TrainFlags& train);
int RunCommand(const Flags& flags, const SuperviseFlags& supervise);

}  // namespace dsat::cli

#endif  // DSAT_CLI_TRAIN_COMMANDS_H_
