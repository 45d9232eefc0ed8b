// Checks of options.
#ifndef DSAT_CLI_FLAGS_CHECKS_H_
#define DSAT_CLI_FLAGS_CHECKS_H_

#include "cli/flags_parser.h"

namespace dsat::cli {

// An error names the option and the value: "--steps: 0; expected a whole number of 1 or more".
// CLI11's own range checks would print their limits with hundreds of digits.
CLI::Validator WholeNumberFrom1();
CLI::Validator WholeNumberFrom0();
CLI::Validator NumberAbove0();
CLI::Validator NumberFrom0();
// A text that is not empty, as that of an unset variable of the shell would be.
CLI::Validator NotEmpty();
// Seconds, or a number with a unit: 90, 90s, 10m, 2h. A transform: it leaves the seconds.
CLI::Validator Duration();

}  // namespace dsat::cli

#endif  // DSAT_CLI_FLAGS_CHECKS_H_
