// Tests the descriptions of exits, and the evidence of the kernel's kills.
#include "searcher/processes/exit_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>

namespace dsat {
namespace {

using testing::HasSubstr;

TEST(ExitReportTest, TheErrorOfARankThatHasLostAnotherIsNoCause) {
  const std::string lost =
      "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer\n";
  const ExitReport exit = {
      .first_failed_rank = 0, .exit_code = 1, .log_tail = "[rank1]: ValueError: label 77\n" + lost};
  EXPECT_THAT(DescribeExit(exit, "the launcher on host"), HasSubstr("ValueError: label 77"));
  EXPECT_THAT(DescribeExit({.first_failed_rank = 0, .exit_code = 1, .log_tail = lost}, "rank"),
              HasSubstr("Connection closed by peer"));
}

TEST(ExitReportTest, AnExitIsDescribedByTheScriptsOwnError) {
  ExitReport exit = {.first_failed_rank = 0, .exit_code = 1};
  exit.log_tail =
      "x.MyError: because\n[Rank 0] time (ms) | fwd: 1\n"
      "torch.distributed.elastic.ChildFailedError:\nmore\n";
  EXPECT_EQ(DescribeExit(exit), "rank 0 exited with code 1: x.MyError: because");
  EXPECT_THAT(DescribeExit(exit, "the launcher on host"),
              HasSubstr("the launcher on host 0 exited"));
  exit.log_tail = "python3: can't open file 'x.py': [Errno 2]\n=====\ntrain.py FAILED\n=====\n";
  EXPECT_THAT(DescribeExit(exit), HasSubstr(": python3: can't open file 'x.py'"));
  exit.exit_code = 128 + SIGSEGV;
  exit.log_tail = "[Rank 0] time (ms) | fwd: 1.50\n";
  EXPECT_EQ(DescribeExit(exit), "rank 0 was killed by signal 11 (Segmentation fault)");
  exit.log_tail = "Fatal Python error: Segmentation fault\n\nThread 0x1:\n";
  EXPECT_THAT(DescribeExit(exit), HasSubstr(": Fatal Python error"));
  exit.exit_code = 128 + SIGBUS;
  EXPECT_THAT(DescribeExit(exit), HasSubstr("/dev/shm may be full"));
}

TEST(ExitReportTest, LastLineSkipsBlankOnes) {
  EXPECT_EQ(LastLine("a\n  b c \r\n\n  \n"), "b c");
  EXPECT_EQ(LastLine("one"), "one");
  EXPECT_EQ(LastLine(" \n"), "");
  EXPECT_EQ(LastLine(""), "");
}

TEST(CrashedTest, IsWhatASignalFromOutsideOrAFaultDoes) {
  for (const int signal_number : {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE})
    EXPECT_TRUE(Crashed(128 + signal_number)) << signal_number;
  for (const int signal_number : {SIGABRT, SIGTERM})
    EXPECT_FALSE(Crashed(128 + signal_number)) << signal_number;
  for (const int exit_code : {0, 1, 128, 255})  // sys.exit(-1) in Python is 255.
    EXPECT_FALSE(Crashed(exit_code)) << exit_code;
}

TEST(ExitReportTest, AnErrorIsQuotedWithoutColorsAndWithItsPlace) {
  EXPECT_EQ(LastErrorOrLine("\x1b[31mValueError\x1b[0m: z\nbye"), "ValueError: z");
  EXPECT_EQ(LastErrorOrLine("\x1b[31mbye\x1b[0m"), "bye");
  EXPECT_EQ(LastErrorOrLine("  File \"a.py\", line 2\n    x = = 1\nSyntaxError: invalid syntax\n"),
            "SyntaxError: invalid syntax (\"a.py\", line 2)");
}

TEST(OomEvidenceTest, FindsCountersByTheirWholeName) {
  const std::string events = "low 0\noom 7\noom_kill 3\noom_group_kill 9\n";
  EXPECT_EQ(FindCounter(events, "oom_kill"), 3);
  EXPECT_EQ(FindCounter(events, "oom"), 7);
  EXPECT_EQ(FindCounter(events, "kill"), std::nullopt);
  EXPECT_EQ(FindCounter("oom_kill x", "oom_kill"), std::nullopt);
  EXPECT_EQ(FindCounter("", "oom_kill"), std::nullopt);
}

TEST(OomEvidenceTest, FindsTheMemoryControlGroup) {
  EXPECT_EQ(FindMemoryCgroup("0::/user.slice/a\n")->path, "/user.slice/a");
  EXPECT_FALSE(FindMemoryCgroup("0::/user.slice/a\n")->v1);
  // On a mixed system the memory controller counts, wherever its line stands.
  const auto mixed = FindMemoryCgroup("9:memory:/docker/b\n1:cpu:/c\n0::/\n");
  EXPECT_EQ(mixed->path, "/docker/b");
  EXPECT_TRUE(mixed->v1);
  EXPECT_EQ(FindMemoryCgroup("1:cpu:/c\n"), std::nullopt);
}

}  // namespace
}  // namespace dsat
