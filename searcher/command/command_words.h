// The words of the user's command, which may be a shell's command line, its flags, and changes.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
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

// The last part of a path.
std::string_view BaseName(std::string_view path);

// Whether the program is a shell, such as /bin/bash.
bool IsShell(std::string_view program);
// Whether it is Python, such as /usr/bin/python3.11.
bool IsPython(std::string_view program);

// A part of a command's word: words()[index].text, `length` bytes from `offset` on.
struct ArgumentPart {
  size_t index = 0;
  size_t offset = 0;
  size_t length = std::string::npos;  // To the end.
};

// The words of argv or, if argv runs a shell as in "sh -c SCRIPT", those of the script. Changes are
// collected; words() stays as it was.
class CommandWords {
 public:
  explicit CommandWords(std::vector<std::string> argv);

  const std::vector<CommandWord>& words() const { return words_; }
  // True if the words are those of a shell's script.
  bool in_shell() const { return script_ < argv_.size(); }

  void Replace(const ArgumentPart& part, std::string_view text);
  // Inserts words behind word `index`.
  void InsertBehind(size_t index, const std::vector<std::string>& texts);
  // Inserts `text` and a colon behind `prefix`, or `text` alone if nothing follows, if word `index`
  // begins with it, such as "PYTHONPATH=a:b". The rest of the word stays as it is written.
  void InsertIntoList(size_t index, std::string_view prefix, const std::string& text);
  // Removes words [begin, end).
  void Remove(size_t begin, size_t end);

  // argv with all changes. New words of a script are quoted.
  std::vector<std::string> Changed() const;

 private:
  struct Change {
    bool removed = false, replaced = false;
    std::string text;
    bool quoted = true;  // For a shell.
    std::vector<std::string> behind;
  };

  std::vector<std::string> argv_;
  size_t script_;  // The index of the script; argv_.size() if there is none.
  std::vector<CommandWord> words_;
  std::map<size_t, Change> changes_;
};

// "--num-gpus=x-y" -> "--num_gpus=x-y".
std::string WithUnderscores(std::string argument);
// The value of words()[index] if that is `flag`, which has underscores: "--flag value" or
// "--flag=value", also with hyphens.
std::optional<ArgumentPart> ValueOfFlag(const CommandWords& command, size_t index,
                                        std::string_view flag);
// The last value of `flag` in the command, which counts for most parsers of arguments.
std::optional<ArgumentPart> FindFlag(const CommandWords& command, std::string_view flag);
std::string TextOf(const CommandWords& command, const ArgumentPart& part);

}  // namespace dsat
