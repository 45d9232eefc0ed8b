// dsat list, show, best, query and export: print the content of the database.
#ifndef DSAT_CLI_RESULT_COMMANDS_H_
#define DSAT_CLI_RESULT_COMMANDS_H_

#include "cli/flags.h"

namespace dsat::cli {

// Each returns the exit code and throws Error on bad input. `flags` is the whole command line
// (--db, --json).
int RunCommand(const Flags& flags, const ListFlags& list);
int RunCommand(const Flags& flags, const ShowFlags& show);
int RunCommand(const Flags& flags, const BestFlags& best);
int RunCommand(const Flags& flags, const QueryFlags& query);
int RunCommand(const Flags& flags, const ExportFlags& export_flags);

}  // namespace dsat::cli

#endif  // DSAT_CLI_RESULT_COMMANDS_H_
