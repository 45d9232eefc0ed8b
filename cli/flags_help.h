// The help of commands: grouped, wrapped at the terminal's width, and with the options first that
// most people need.
#ifndef DSAT_CLI_FLAGS_HELP_H_
#define DSAT_CLI_FLAGS_HELP_H_

#include <cstddef>
#include <string>

#include "cli/flags_parser.h"

namespace dsat::cli {

// Gives `app` and its subcommands help of at most `columns` columns. Searches show the options that
// few people need only if `all` is true, and get a flag --help-all for that.
void ShapeHelp(CLI::App& app, size_t columns, bool all);

// Returns " (did you mean --x?)" if a word of the command line is no option of `app`'s chosen
// subcommand, but nearly one; else "".
std::string NearestOption(const CLI::App& app, int argc, const char* const* argv);

}  // namespace dsat::cli

#endif  // DSAT_CLI_FLAGS_HELP_H_
