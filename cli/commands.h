// What each command does. One overload per command; each returns the exit code.
#ifndef DSAT_CLI_COMMANDS_H_
#define DSAT_CLI_COMMANDS_H_

#include "cli/flags.h"

namespace dsat::cli {

// All throw Error on bad input; main prints it as one line. `flags` is the whole command line
// (--db,
// --json); the second argument is the chosen command's part of it.
int RunCommand(const Flags& flags, const SearchFlags& search);
int RunCommand(const Flags& flags, const ResumeFlags& resume);
int RunCommand(const Flags& flags, const CreateFlags& create);
int RunCommand(const Flags& flags, const AskFlags& ask);
int RunCommand(const Flags& flags, const TellFlags& tell);
int RunCommand(const Flags& flags, const ServeFlags& serve);
int RunCommand(const Flags& flags, const ListFlags& list);
int RunCommand(const Flags& flags, const ShowFlags& show);
int RunCommand(const Flags& flags, const BestFlags& best);
int RunCommand(const Flags& flags, const QueryFlags& query);
int RunCommand(const Flags& flags, const ExportFlags& export_flags);
int RunCommand(const Flags& flags, const TrainFlags& train);
int RunCommand(const Flags& flags, const EvalFlags& eval);
int RunCommand(const Flags& flags, const GenerateFlags& generate);
int RunCommand(const Flags& flags, const EstimateFlags& estimate);
int RunCommand(const Flags& flags, const CollateFlags& collate);
int RunCommand(const Flags& flags, const AioBenchFlags& bench);
int RunCommand(const Flags& flags, const DoctorFlags& doctor);
int RunCommand(const Flags& flags, const SuperviseFlags& supervise);

}  // namespace dsat::cli

#endif  // DSAT_CLI_COMMANDS_H_
