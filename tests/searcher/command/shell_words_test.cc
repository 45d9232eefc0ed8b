// Tests how commands are split into words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "searcher/command/command_words.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;

TEST(SplitCommandTest, SplitsAsAShellWould) {
  struct Case {
    const char* command;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {"python3 train.py", {"python3", "train.py"}},
      {"  python3\t train.py  ", {"python3", "train.py"}},
      {"a 'b c' \"d e\"", {"a", "b c", "d e"}},
      {"a b'c'\"d\"e", {"a", "bcde"}},
      {"a '' \"\"", {"a", "", ""}},
      {"a b\\ c \\\"d", {"a", "b c", "\"d"}},
      {"a '\\n \"x\"' \"it's \\\"y\\\" \\n\"", {"a", "\\n \"x\"", "it's \"y\" \\n"}},
      {"a '$HOME | x'", {"a", "$HOME | x"}},
      {"a \"\\$HOME\"", {"a", "$HOME"}},
      {"a --lr=0.1 x=y", {"a", "--lr=0.1", "x=y"}},
      {"a --config={ds_config} {ds_config}", {"a", "--config={ds_config}", "{ds_config}"}},
      {"a --lr={lr}", {"a", "--lr={lr}"}},
      {"a \\\n  b", {"a", "b"}},
      {"", {}},
  };
  for (const Case& c : cases)
    EXPECT_EQ(SplitCommand(c.command), c.words) << c.command;
}

TEST(SplitCommandTest, WhatNeedsAShellGetsOne) {
  for (const char* command : {"a | b", "a > f", "a; b", "a && b", "a $X", "a \"$X\"", "a `b`",
                              "a *.txt", "X=1 a", "(a)", "a ~/b", "a\nb", "a {1,2}", "a # b"}) {
    EXPECT_THAT(SplitCommand(command), ElementsAre("sh", "-c", command));
  }
}

TEST(SplitCommandTest, TheWordsOfAShellsCommandsAreFound) {
  const std::string script =
      "cd x && A=1 python t.py '--f=a b' \"$X y\" ${Z:-p q} $(ls -l) 2>&1 | tee l # c d\nwait";
  std::string words, firsts, expand;
  for (const CommandWord& word : ReadCommandLine(script).words) {
    words += word.text + "|";
    if (word.first) firsts += word.text + "|";
    if (word.expands) expand += script.substr(word.begin, word.end - word.begin) + "|";
  }
  EXPECT_EQ(words, "cd|x|A=1|python|t.py|--f=a b|$X y|${Z:-p q}|$(ls -l)|2|1|tee|l|wait|");
  EXPECT_EQ(firsts, "cd|A=1|tee|wait|");
  EXPECT_EQ(expand, "\"$X y\"|${Z:-p q}|$(ls -l)|");
}

TEST(SplitCommandTest, AnOpenQuoteIsRefused) {
  for (const char* command : {"a 'b", "a \"b", "a \"b\\\"", "'"}) {
    EXPECT_THROW(SplitCommand(command), Error) << command;
  }
}

}  // namespace
}  // namespace dsat
