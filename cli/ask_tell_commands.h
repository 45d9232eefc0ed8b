// dsat create, ask, tell and serve: experiments whose trials are run by other programs.
#ifndef DSAT_CLI_ASK_TELL_COMMANDS_H_
#define DSAT_CLI_ASK_TELL_COMMANDS_H_

#include "cli/flags.h"

namespace dsat::cli {

// Each returns the exit code and throws Error on bad input. `flags` is the whole command line
// (--db, --json).
int RunCommand(const Flags& flags, const CreateFlags& create);
int RunCommand(const Flags& flags, const AskFlags& ask);
int RunCommand(const Flags& flags, const TellFlags& tell);
int RunCommand(const Flags& flags, const ServeFlags& serve);

}  // namespace dsat::cli

#endif  // DSAT_CLI_ASK_TELL_COMMANDS_H_
