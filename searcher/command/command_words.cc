// The words of the user's command, which may be a shell's command line, its flags, and changes.
#include "searcher/command/command_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

using Argv = std::vector<std::string>;

// The index of SCRIPT in "sh -c SCRIPT", "bash -lc SCRIPT"; argv.size() if there is none.
size_t FindScript(const Argv& argv) {
  constexpr std::array<std::string_view, 5> kShells = {"sh", "bash", "dash", "zsh", "ksh"};
  if (argv.empty() || std::ranges::find(kShells, BaseName(argv[0])) == kShells.end())
    return argv.size();
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

std::string_view BaseName(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

CommandWords::CommandWords(Argv argv) : argv_(std::move(argv)), script_(FindScript(argv_)) {
  if (in_shell()) {
    words_ = WordsOfScript(argv_[script_]);
    return;
  }
  for (const std::string& text : argv_)
    words_.push_back({.text = text, .first = words_.empty()});
}

void CommandWords::Replace(size_t index, std::string text) {
  Change& change = changes_[index];
  change.replaced = true;
  change.text = std::move(text);
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
  if (changes_.empty()) return argv_;
  Argv argv;
  std::string script;
  size_t copied = 0;  // Bytes of the old script.
  for (size_t i = 0; i < words_.size(); ++i) {
    const auto found = changes_.find(i);
    const Change change = found == changes_.end() ? Change{} : found->second;
    if (in_shell()) {
      if (found == changes_.end()) continue;
      script.append(argv_[script_], copied, words_[i].begin - copied);
      copied = words_[i].end;
      if (change.replaced) script += change.quoted ? ShellWord(change.text) : change.text;
      if (!change.replaced && !change.removed)
        script.append(argv_[script_], words_[i].begin, copied - words_[i].begin);
      const bool gone = change.removed && !change.replaced;
      while (gone && copied < argv_[script_].size() && argv_[script_][copied] == ' ')
        ++copied;
      for (const std::string& text : change.behind)
        script += fmt::format(" {}", ShellWord(text));
      continue;
    }
    if (!change.removed) argv.push_back(change.replaced ? change.text : words_[i].text);
    argv.insert(argv.end(), change.behind.begin(), change.behind.end());
  }
  if (!in_shell()) return argv;
  script.append(argv_[script_], copied);
  argv = argv_;
  argv[script_] = std::move(script);
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
