// Parses the command line.
#ifndef DSAT_CLI_PARSE_FLAGS_H_
#define DSAT_CLI_PARSE_FLAGS_H_

#include <variant>

#include "cli/flags.h"

namespace dsat::cli {

// The parsed command line, or the exit code if it ends here (--help, --version, a usage error,
// which is then one line on stderr).
std::variant<Flags, int> ParseFlags(int argc, const char* const* argv);

}  // namespace dsat::cli

#endif  // DSAT_CLI_PARSE_FLAGS_H_
