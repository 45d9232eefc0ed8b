// Splits a command line into words.
#include "searcher/input/shell_words.h"

#include <string_view>

#include "base/error.h"

namespace dsat {
namespace {

// Characters with a special meaning outside quotes; inside double quotes only $ and `.
constexpr std::string_view kShellCharacters = "|&;<>()$`*?[]{}~#\n";
constexpr std::string_view kShellInQuotes = "$`";

// Splits a command into words and detects whether it needs a shell.
class Splitter {
 public:
  explicit Splitter(const std::string& command) : command_(command) {}

  void Run() {
    for (; pos_ < command_.size(); ++pos_) {
      char c = command_[pos_];
      if (c == '\'' || c == '"') {
        Quoted(c);
      } else if (c == ' ' || c == '\t') {
        EndWord();
      } else if (c == '\\' && pos_ + 1 < command_.size()) {
        Add(command_[++pos_]);
      } else {
        needs_shell_ = needs_shell_ || kShellCharacters.find(c) != std::string_view::npos;
        Add(c);
      }
    }
    EndWord();
  }

  // "X=1 python3 train.py" sets a variable, which needs a shell.
  bool needs_shell() const {
    return needs_shell_ || (!words_.empty() && words_[0].find('=') != std::string::npos);
  }
  std::vector<std::string>& words() { return words_; }

 private:
  void Quoted(char quote) {
    size_t start = pos_;
    in_word_ = true;  // Also if there is nothing between the quotes.
    for (++pos_; pos_ < command_.size() && command_[pos_] != quote; ++pos_) {
      char c = command_[pos_];
      bool escapes = quote == '"' && c == '\\' && pos_ + 1 < command_.size() &&
                     std::string_view("\"\\$`").find(command_[pos_ + 1]) != std::string_view::npos;
      if (escapes) {
        Add(command_[++pos_]);
        continue;
      }
      bool special = quote == '"' && kShellInQuotes.find(c) != std::string_view::npos;
      needs_shell_ = needs_shell_ || special;
      Add(c);
    }
    if (pos_ < command_.size()) return;
    Throw(ErrorCode::kInvalidArgument, "the quote {} at character {} is never closed", quote,
          start + 1);
  }

  void Add(char c) {
    word_ += c;
    in_word_ = true;
  }

  void EndWord() {
    if (in_word_) words_.push_back(word_);
    word_.clear();
    in_word_ = false;
  }

  const std::string& command_;
  size_t pos_ = 0;
  std::vector<std::string> words_;
  std::string word_;
  bool in_word_ = false;
  bool needs_shell_ = false;
};

}  // namespace

std::vector<std::string> SplitCommand(const std::string& command) {
  Splitter splitter(command);
  splitter.Run();
  if (splitter.needs_shell()) return {"sh", "-c", command};
  return splitter.words();
}

}  // namespace dsat
