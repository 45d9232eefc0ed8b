// Tests reading the losses that a script has printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "searcher/scripts/hook_report.h"

namespace dsat {
namespace {

using testing::ElementsAre;

std::vector<double> LossesOf(const std::string& log, const std::string& pattern) {
  const std::string path = testing::TempDir() + "dsat-losses-" + std::to_string(getpid());
  std::ofstream(path) << log;
  std::vector<double> losses = LossesInLog(path, pattern);
  std::filesystem::remove(path);
  return losses;
}

TEST(ScriptLossesTest, TextInAnyEncodingIsSearched) {
  EXPECT_THAT(
      LossesOf("\xff\xfeloss\xe9: 1.5\nno\nloss\xc3\xa9: 2e-1\n", "loss.{1,2}: ([-.0-9e]+)"),
      ElementsAre(1.5, 0.2));
}

TEST(ScriptLossesTest, APatternThatCouldBacktrackForeverDoesNot) {
  const std::string log = "loss 3 " + std::string(8000, 'x') + "\nloss 4 xxxy\n";
  EXPECT_THAT(LossesOf(log, "loss ([0-9]+) (x+x+)+y"), ElementsAre(4));
}

TEST(ScriptLossesTest, LongLinesAreSkippedAndALastLineNeedsNoEnd) {
  const std::string longest(8192 - 6, ' ');  // With "loss 1".
  const std::string log = longest + "loss 1\n" + longest + " loss 2\n\n" +
                          std::string(1'000'000, '.') + "loss 3\nloss 4";
  EXPECT_THAT(LossesOf(log, "loss ([0-9]+)"), ElementsAre(1, 4));
  EXPECT_THAT(LossesOf(longest + " loss 5", "loss ([0-9]+)"), ElementsAre());
}

}  // namespace
}  // namespace dsat
