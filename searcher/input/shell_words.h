// Splits a command line into words.
#ifndef DSAT_SEARCHER_INPUT_SHELL_WORDS_H_
#define DSAT_SEARCHER_INPUT_SHELL_WORDS_H_

#include <string>
#include <vector>

namespace dsat {

// Splits `command` as a shell does: blanks separate words; quotes and backslashes join them. A
// command that needs a shell (pipes, variables, patterns, ...) becomes {"sh", "-c", command}.
// Throws kInvalidArgument naming an open quote.
std::vector<std::string> SplitCommand(const std::string& command);

}  // namespace dsat

#endif  // DSAT_SEARCHER_INPUT_SHELL_WORDS_H_
