// Tests the alignment of text tables, and tables that are wider than the terminal.
#include "base/table.h"

#include <gtest/gtest.h>

namespace dsat {
namespace {

TEST(TableTest, NumbersAreAlignedRightAndTextLeft) {
  EXPECT_EQ(FormatTable({"n", "name"}, {{"1", "a"}, {"10", "long"}}),
            " n  name\n"
            "--  ----\n"
            " 1  a\n"
            "10  long\n");
  EXPECT_EQ(FormatTable({}, {}), "");
}

TEST(TableTest, TheLastColumnWrapsAtBlanksBelowItself) {
  EXPECT_EQ(FormatTable({"n", "settings"}, {{"1", "aaaa=1 bbbb=2 cc=3"}, {"2", "d=4"}}, 15),
            "n  settings\n"
            "-  ------------\n"
            "1  aaaa=1\n"
            "   bbbb=2 cc=3\n"
            "2  d=4\n");
}

TEST(TableTest, WhatFitsIsNotWrappedAndAWordStaysWhole) {
  const std::string line = "aaaa=1 bbbb=2";
  EXPECT_EQ(FormatTable({"n", "s"}, {{"1", line}}, 3 + line.size()),
            FormatTable({"n", "s"}, {{"1", line}}));
  EXPECT_EQ(FormatTable({"n", "s"}, {{"1", "seven77 x"}}, 8),
            "n  s\n"
            "-  -----\n"
            "1  seven77\n"
            "   x\n");
}

}  // namespace
}  // namespace dsat
