// dsat eval and dsat generate: run a checkpoint on one rank.
#ifndef DSAT_CLI_INFERENCE_COMMANDS_H_
#define DSAT_CLI_INFERENCE_COMMANDS_H_

#include "cli/flags.h"

namespace dsat::cli {

// Each returns the exit code and throws Error on bad input. `flags` is the whole command line
// (--db, --json).
int RunCommand(const Flags& flags, const EvalFlags& eval);
int RunCommand(const Flags& flags, const GenerateFlags& generate);

}  // namespace dsat::cli

#endif  // DSAT_CLI_INFERENCE_COMMANDS_H_
