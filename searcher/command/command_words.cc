// The words of the user's command, which may be a shell's command line, its flags, and changes.
#include "searcher/command/command_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

using Argv = std::vector<std::string>;

// Characters outside of quotes that need a shell. The first ones also end a word, and of these the
// first ones end a command. Inside of double quotes only $ and ` need a shell.
constexpr std::string_view kEndsCommand = "|&;()\n";
constexpr std::string_view kEndsWord = "|&;()\n<>";
constexpr std::string_view kNeedsShell = "|&;()\n<>$`*?[]{}~#";
constexpr std::string_view kNeedsShellInQuotes = "$`";

bool Has(std::string_view characters, char c) {
  return characters.find(c) != std::string_view::npos;
}

class Splitter {
 public:
  explicit Splitter(const std::string& command) : command_(command) {}

  CommandLine Run() {
    while (pos_ < command_.size())
      Step();
    EndWord();
    // "X=1 python3 train.py" sets a variable.
    const bool sets = !line_.words.empty() && Has(line_.words[0].text, '=');
    line_.needs_shell = line_.needs_shell || sets;
    return std::move(line_);
  }

 private:
  bool At(std::string_view text) const {
    return std::string_view(command_).substr(pos_).starts_with(text);
  }

  // The length of "{name}", which means itself to a shell, at this position; 0 if there is none.
  size_t PlaceholderLength() const {
    const std::string_view rest = std::string_view(command_).substr(pos_);
    if (!rest.starts_with('{')) return 0;
    const size_t length = LeadingVariableName(rest.substr(1)).size();
    return length > 0 && rest.substr(length + 1).starts_with('}') ? length + 2 : 0;
  }

  void Step() {
    const char c = command_[pos_];
    if (c == '\'' || c == '"') {
      Quoted(c);
    } else if (c == ' ' || c == '\t') {
      EndWord();
      ++pos_;
    } else if (At("\\\n")) {
      pos_ += 2;  // The line goes on.
    } else if (c == '\\' && pos_ + 1 < command_.size()) {
      Take(1, "");
      Take(1);
    } else if (const size_t length = PlaceholderLength(); length > 0) {
      Take(length);
    } else {
      Unquoted(c);
    }
  }

  void Unquoted(char c) {
    line_.needs_shell = line_.needs_shell || Has(kNeedsShell, c);
    if (c == '#' && !in_word_) {
      pos_ = std::min(command_.find('\n', pos_), command_.size());
    } else if (Has(kEndsWord, c)) {
      EndWord();
      ++pos_;
      // "2>&1" redirects and starts no command.
      while (Has("<>", c) && pos_ < command_.size() && Has("<>&", command_[pos_]))
        ++pos_;
      first_ = first_ || Has(kEndsCommand, c);
    } else if (c == '$' || c == '`') {
      Expansion();
    } else {
      word_.expands = word_.expands || Has("*?[]{}~", c);
      Take(1);
    }
  }

  // "$X", "${X}", "$(command)" or "`command`", as it is written.
  void Expansion() {
    word_.expands = true;
    size_t end = pos_ + 1;
    if (command_[pos_] == '`') {
      end = command_.find('`', end);
    } else if (At("$(") || At("${")) {
      const char open = command_[end], close = open == '(' ? ')' : '}';
      for (int depth = 0; end < command_.size(); ++end) {
        depth += command_[end] == open ? 1 : command_[end] == close ? -1 : 0;
        if (depth == 0) break;
      }
    } else {
      --end;
    }
    Take(std::min(end, command_.size() - 1) + 1 - pos_);
  }

  void Quoted(char quote) {
    const size_t start = pos_;
    Take(1, "");  // There is a word also if there is nothing between the quotes.
    while (pos_ < command_.size() && command_[pos_] != quote) {
      const char c = command_[pos_];
      const bool escapes = quote == '"' && c == '\\' && pos_ + 1 < command_.size() &&
                           Has("\"\\$`\n", command_[pos_ + 1]);
      if (escapes) {
        Take(1, "");
        command_[pos_] == '\n' ? Take(1, "") : Take(1);
        continue;
      }
      const bool special = quote == '"' && Has(kNeedsShellInQuotes, c);
      line_.needs_shell = line_.needs_shell || special;
      special ? Expansion() : Take(1);
    }
    if (pos_ < command_.size()) return Take(1, "");
    Throw(ErrorCode::kInvalidArgument, "the quote {} at character {} is never closed", quote,
          start + 1);
  }

  // Moves `count` bytes on, which add to the word.
  void Take(size_t count) { Take(count, std::string_view(command_).substr(pos_, count)); }
  void Take(size_t count, std::string_view text) {
    if (!in_word_) word_.begin = pos_;
    in_word_ = true;
    word_.text += text;
    pos_ += count;
    word_.end = pos_;
  }

  void EndWord() {
    if (in_word_) {
      word_.first = std::exchange(first_, false);
      line_.words.push_back(word_);
    }
    word_ = {};
    in_word_ = false;
  }

  const std::string& command_;
  size_t pos_ = 0;
  CommandLine line_;
  CommandWord word_;
  bool in_word_ = false;
  bool first_ = true;
};

// The index of SCRIPT in "sh -c SCRIPT", "bash -lc SCRIPT"; argv.size() if there is none.
size_t FindScript(const Argv& argv) {
  if (argv.empty() || !IsShell(argv[0])) return argv.size();
  for (size_t i = 1; i + 1 < argv.size() && argv[i].starts_with('-'); ++i) {
    if (!argv[i].starts_with("--") && argv[i].ends_with('c')) return i + 1;
  }
  return argv.size();
}

std::vector<CommandWord> WordsOfScript(const std::string& script) {
  try {
    return ReadCommandLine(script).words;
  } catch (const Error&) {
    return {};  // The shell reports the open quote.
  }
}

}  // namespace

CommandLine ReadCommandLine(const std::string& command) {
  return Splitter(command).Run();
}

std::vector<std::string> SplitCommand(const std::string& command) {
  const CommandLine line = ReadCommandLine(command);
  if (line.needs_shell) return {"sh", "-c", command};
  std::vector<std::string> words;
  for (const CommandWord& word : line.words)
    words.push_back(word.text);
  return words;
}

bool IsVariableName(std::string_view name) {
  return !name.empty() && LeadingVariableName(name) == name;
}

std::string_view LeadingVariableName(std::string_view text) {
  const auto fits = [](unsigned char c) { return c < 0x80 && (std::isalnum(c) != 0 || c == '_'); };
  if (!text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0) return "";
  return text.substr(0, static_cast<size_t>(std::ranges::find_if_not(text, fits) - text.begin()));
}

std::string_view BaseName(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool IsShell(std::string_view program) {
  constexpr std::array<std::string_view, 5> kShells = {"sh", "bash", "dash", "zsh", "ksh"};
  return std::ranges::find(kShells, BaseName(program)) != kShells.end();
}

bool IsPython(std::string_view program) {
  return BaseName(program).starts_with("python");
}

CommandWords::CommandWords(Argv argv) : argv_(std::move(argv)), script_(FindScript(argv_)) {
  if (in_shell()) {
    words_ = WordsOfScript(argv_[script_]);
    return;
  }
  for (const std::string& text : argv_)
    words_.push_back({.text = text, .first = words_.empty()});
}

void CommandWords::Replace(const ArgumentPart& part, std::string_view text) {
  Change& change = changes_[part.index];
  change.replaced = true;
  change.text = words_[part.index].text;
  change.text.replace(part.offset, part.length, text);
}

void CommandWords::InsertBehind(size_t index, const Argv& texts) {
  Argv& behind = changes_[index].behind;
  behind.insert(behind.end(), texts.begin(), texts.end());
}

void CommandWords::InsertIntoList(size_t index, std::string_view prefix, const std::string& text) {
  const CommandWord& word = words_[index];
  const std::string raw =
      in_shell() ? argv_[script_].substr(word.begin, word.end - word.begin) : word.text;
  if (!raw.starts_with(prefix)) return;
  const std::string rest = raw.substr(prefix.size());
  Change& change = changes_[index];
  change.replaced = true;
  change.quoted = false;
  change.text = fmt::format("{}{}{}{}", prefix, in_shell() ? ShellWord(text) : text,
                            rest.empty() ? "" : ":", rest);
}

void CommandWords::Remove(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i)
    changes_[i].removed = true;
}

Argv CommandWords::Changed() const {
  Argv argv;
  if (!in_shell()) {
    for (size_t i = 0; i < words_.size(); ++i) {
      const auto found = changes_.find(i);
      const Change change = found == changes_.end() ? Change{} : found->second;
      if (!change.removed) argv.push_back(change.replaced ? change.text : words_[i].text);
      argv.insert(argv.end(), change.behind.begin(), change.behind.end());
    }
    return argv;
  }
  argv = argv_;
  const std::string& before = argv_[script_];
  std::string& script = argv[script_] = "";
  size_t copied = 0;  // Bytes of the script before.
  for (const auto& [i, change] : changes_) {
    if (i >= words_.size()) break;  // The shell reports an open quote.
    const size_t begin = change.replaced || change.removed ? words_[i].begin : words_[i].end;
    script.append(before, copied, begin - copied);
    copied = words_[i].end;
    if (change.replaced) script += change.quoted ? ShellWord(change.text) : change.text;
    while (change.removed && !change.replaced && copied < before.size() && before[copied] == ' ')
      ++copied;
    for (const std::string& text : change.behind)
      script += fmt::format(" {}", ShellWord(text));
  }
  script.append(before, copied);
  return argv;
}

std::string WithUnderscores(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  for (size_t i = 2; i < argument.size() && argument[i] != '='; ++i) {
    if (argument[i] == '-') argument[i] = '_';
  }
  return argument;
}

std::optional<ArgumentPart> ValueOfFlag(const CommandWords& command, size_t index,
                                        std::string_view flag) {
  const std::vector<CommandWord>& words = command.words();
  const std::string argument = WithUnderscores(words[index].text);
  if (argument.starts_with(std::string(flag) + "=")) return ArgumentPart{index, flag.size() + 1};
  if (argument != flag || index + 1 == words.size() || words[index + 1].first ||
      words[index + 1].text.starts_with("-"))
    return std::nullopt;
  return ArgumentPart{index + 1, 0};
}

std::optional<ArgumentPart> FindFlag(const CommandWords& command, std::string_view flag) {
  for (size_t i = command.words().size(); i-- > 0;) {
    if (const auto value = ValueOfFlag(command, i, flag)) return value;
  }
  return std::nullopt;
}

std::string TextOf(const CommandWords& command, const ArgumentPart& part) {
  return command.words()[part.index].text.substr(part.offset, part.length);
}

}  // namespace dsat
