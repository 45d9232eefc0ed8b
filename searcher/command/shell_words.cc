// Splits a command line into words.
#include "searcher/command/shell_words.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"

namespace dsat {
namespace {

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

}  // namespace dsat
