// Tests the help of the commands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/cli/run_dsat.h"

namespace dsat::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class HelpTest : public ::testing::Test {
 protected:
  Workspace work;
};

TEST_F(HelpTest, HelpNamesEveryCommandAndEachMethodItsOptions) {
  const Finished help = work.Dsat({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command :
       {"asha", "binary", "random", "grid", "resume", "train", "list", "show", "best", "report",
        "query", "export", "collate", "create", "ask", "tell", "serve"})
    EXPECT_THAT(help.out, HasSubstr(command));
  EXPECT_THAT(help.out, Not(HasSubstr("supervise")));
  const Finished asha = work.Dsat({"asha", "--help-all"});
  for (const char* option : {"--max-trials",
                             "--max-concurrent-trials",
                             "--max-slots",
                             "--metric",
                             "--zero-stages",
                             "--random-seed",
                             "--start-profile-step",
                             "--end-profile-step",
                             "--run-full-experiment",
                             "--max-rungs",
                             "--min-binary-search-trials",
                             "--asha-early-stopping",
                             "--divisor",
                             "--search-range-factor",
                             "--compat",
                             "--allow",
                             "--train-batch-size",
                             "--divisible-by",
                             "--confirm",
                             "--max-time",
                             "--max-device-hours"})
    EXPECT_THAT(asha.out, HasSubstr(option));
  EXPECT_EQ(work.Dsat({}).out, help.out);
  EXPECT_EQ(work.Dsat({"help"}).out, help.out);
  EXPECT_EQ(work.Dsat({"version"}).out, work.Dsat({"--version"}).out);
  EXPECT_THAT(work.Dsat({"asha", "x.yaml", "--max-trial", "3"}).err,
              HasSubstr("did you mean --max-trials?"));
  for (const std::string command : {"auto", "asha", "train", "estimate", "serve"}) {
    std::istringstream lines(work.Dsat({command, "--help-all"}).out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), 80U) << command << ": " << line;
  }
  EXPECT_THAT(work.Dsat({"random", "--help-all"}).out, HasSubstr("--trials-per-random-config"));
}

TEST_F(HelpTest, TheOptionsThatMostPeopleNeedComeFirst) {
  const std::string help = work.Dsat({"auto", "--help"}).out;
  for (const char* option : {"--max-time", "--train-batch-size", "--hostfile", "--help-all"})
    EXPECT_THAT(help, HasSubstr(option));
  EXPECT_THAT(help, Not(HasSubstr("--random-seed")));
  EXPECT_THAT(work.Dsat({"auto", "x.yaml", "--random-seed", "no"}).err,
              HasSubstr("--random-seed: no; expected"));
}

}  // namespace
}  // namespace dsat::cli
