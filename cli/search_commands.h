// dsat asha|binary|random|grid and dsat resume: searches, and the full run after a search.
#ifndef DSAT_CLI_SEARCH_COMMANDS_H_
#define DSAT_CLI_SEARCH_COMMANDS_H_

#include "cli/flags.h"

namespace dsat::cli {

// Each returns the exit code and throws Error on bad input. `flags` is the whole command line
// (--db, --json).
int RunCommand(const Flags& flags, const SearchFlags& search);
int RunCommand(const Flags& flags, const ResumeFlags& resume);

}  // namespace dsat::cli

#endif  // DSAT_CLI_SEARCH_COMMANDS_H_
