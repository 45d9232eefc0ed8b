// The options of searches, and of experiments whose trials are run by other programs.
#ifndef DSAT_CLI_FLAGS_SEARCH_H_
#define DSAT_CLI_FLAGS_SEARCH_H_

#include "cli/flags_parser.h"

namespace dsat::cli {

void AddSearchCommands(Parser& parser);
void AddAskTellCommands(Parser& parser);

}  // namespace dsat::cli

#endif  // DSAT_CLI_FLAGS_SEARCH_H_
