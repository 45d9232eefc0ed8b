// The commands of dsat. Each returns the exit code of the program and throws Error on bad input.
// `flags` is the whole command line (--db, --json).
#pragma once

#include "cli/flags.h"

namespace dsat::cli {

// search_commands.cc: auto, asha, binary, random, grid, demo and resume.
int RunCommand(const Flags& flags, const SearchFlags& search);
int RunCommand(const Flags& flags, const DemoFlags& demo);
int RunCommand(const Flags& flags, const ResumeFlags& resume);
int RunCommand(const Flags& flags, const InitFlags& init);
// space_command.cc
int RunCommand(const Flags& flags, const SpaceFlags& space);
// check_command.cc. Returns 1 if the configuration is slower than recorded on this machine by more
// than the tolerance.
int RunCommand(const Flags& flags, const CheckFlags& check);
// ask_tell_commands.cc: experiments whose trials are run by other programs.
int RunCommand(const Flags& flags, const CreateFlags& create);
int RunCommand(const Flags& flags, const AskFlags& ask);
int RunCommand(const Flags& flags, const TellFlags& tell);
int RunCommand(const Flags& flags, const ServeFlags& serve);
// result_commands.cc: the content of the database.
int RunCommand(const Flags& flags, const ListFlags& list);
int RunCommand(const Flags& flags, const ShowFlags& show);
int RunCommand(const Flags& flags, const BestFlags& best);
int RunCommand(const Flags& flags, const QueryFlags& query);
int RunCommand(const Flags& flags, const ExportFlags& export_flags);
int RunCommand(const Flags& flags, const ReportFlags& report);
// train_commands.cc. supervise is not shown in the help.
int RunCommand(const Flags& flags, const TrainFlags& train);
int RunCommand(const Flags& flags, const SuperviseFlags& supervise);
int RunCommand(const Flags& flags, const EvalFlags& eval);
int RunCommand(const Flags& flags, const GenerateFlags& generate);
int RunCommand(const Flags& flags, const CollateFlags& collate);
// The files of the same names.
int RunCommand(const Flags& flags, const EstimateFlags& estimate);
int RunCommand(const Flags& flags, const AioBenchFlags& bench);
int RunCommand(const Flags& flags, const DoctorFlags& doctor);

}  // namespace dsat::cli
