// Splits a command line into words.
#ifndef DSAT_SEARCHER_COMMAND_SHELL_WORDS_H_
#define DSAT_SEARCHER_COMMAND_SHELL_WORDS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dsat {

// Stands for the path of a trial's ds_config in a command.
inline constexpr char kConfigPlaceholder[] = "{ds_config}";

// A word of a shell's command line.
struct CommandWord {
  std::string text;  // Without quotes; variables and substitutions as they are written.
  size_t begin = 0;  // [begin, end) are its bytes in the command line.
  size_t end = 0;
  bool first = false;    // It begins a command of the line.
  bool expands = false;  // The shell replaces a part of it, so that `text` is not its value.
};

struct CommandLine {
  std::vector<CommandWord> words;
  bool needs_shell = false;  // Pipes, variables, patterns, several commands, ...
};

// Splits `command` as a shell does: blanks, operators and comments separate words; quotes and
// backslashes join them. Throws kInvalidArgument naming an open quote.
CommandLine ReadCommandLine(const std::string& command);

// The words of `command`, or {"sh", "-c", command} if it needs a shell. Throws as ReadCommandLine.
std::vector<std::string> SplitCommand(const std::string& command);

// Whether a shell takes `name` for the name of a variable.
bool IsVariableName(std::string_view name);
// The longest name of a variable with which `text` begins; "" if there is none.
std::string_view LeadingVariableName(std::string_view text);

}  // namespace dsat

#endif  // DSAT_SEARCHER_COMMAND_SHELL_WORDS_H_
