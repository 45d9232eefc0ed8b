// dsat report: writes one HTML page about an experiment.
#ifndef DSAT_CLI_REPORT_COMMAND_H_
#define DSAT_CLI_REPORT_COMMAND_H_

#include "cli/flags.h"

namespace dsat::cli {

// Returns the exit code. Throws Error if there is no such experiment or the file cannot be written.
int RunCommand(const Flags& flags, const ReportFlags& report);

}  // namespace dsat::cli

#endif  // DSAT_CLI_REPORT_COMMAND_H_
