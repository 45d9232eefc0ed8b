// dsat doctor: reports what this machine provides, what is missing and how to fix it.
#ifndef DSAT_CLI_DOCTOR_COMMAND_H_
#define DSAT_CLI_DOCTOR_COMMAND_H_

#include "cli/flags.h"

namespace dsat::cli {

// Returns the exit code. Throws Error on bad input. `flags` is the whole command line (--db,
// --json).
int RunCommand(const Flags& flags, const DoctorFlags& doctor);

}  // namespace dsat::cli

#endif  // DSAT_CLI_DOCTOR_COMMAND_H_
