// The options of training, and of the commands before and after it.
#ifndef DSAT_CLI_FLAGS_TRAINING_H_
#define DSAT_CLI_FLAGS_TRAINING_H_

#include "cli/flags_parser.h"

namespace dsat::cli {

void AddTrainingCommands(Parser& parser);

}  // namespace dsat::cli

#endif  // DSAT_CLI_FLAGS_TRAINING_H_
