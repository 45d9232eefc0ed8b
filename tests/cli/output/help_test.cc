// Tests the help of the commands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/files.h"
#include "tests/build_folder.h"
#include "tests/cli/run_dsat.h"

namespace dsat::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class HelpTest : public ::testing::Test {
 protected:
  Workspace work;
};

TEST_F(HelpTest, HelpNamesEveryCommandAndEachMethodItsOptions) {
  const Finished help = work.Succeed({"--help"});
  for (const char* command :
       {"asha", "binary", "random", "grid", "resume", "train", "list", "show", "best", "report",
        "query", "export", "collate", "create", "ask", "tell", "serve", "completion"})
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
  EXPECT_THAT(work.Dsat({"version"}).out,
              ContainsRegex("^dsat [0-9]+\\.[0-9]+\\.[0-9]+( \\([0-9a-f]+\\))?\n$"));
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

TEST_F(HelpTest, NoCommandShowsMoreThanTwelveOptionsAtOnceAndEachHasAWordForItsValue) {
  for (const char* command : {"auto", "random", "check", "resume", "space", "train", "estimate",
                              "report", "query", "collate", "aio-bench", "serve"}) {
    const std::string help = work.Dsat({command, "--help"}).out;
    std::istringstream lines(help);
    int num_options = 0;
    for (std::string line; std::getline(lines, line);)
      num_options += line.starts_with("  -") ? 1 : 0;
    EXPECT_LE(num_options, 12) << help;
    for (const char* type : {" INT", " UINT", " FLOAT", " TEXT", "POSITIVE", "BOOLEAN"})
      EXPECT_THAT(work.Dsat({command, "--help-all"}).out, Not(HasSubstr(type))) << command;
  }
  const std::string help = work.Dsat({"auto", "--help"}).out;
  EXPECT_LT(help.find("What to search:"), help.find("How to measure:"));
  EXPECT_LT(help.find("How to measure:"), help.find("Where to run:"));
  EXPECT_LT(help.find("Where to run:"), help.find("Output:"));
  const std::string all = work.Dsat({"auto", "--help-all"}).out;
  EXPECT_THAT(all, HasSubstr("--hang-timeout SECONDS"));
  EXPECT_THAT(all, HasSubstr("--include-hosts NAME[:SLOT,...][@NAME...]"));
  EXPECT_THAT(all, HasSubstr("--space published|wide"));
}

TEST_F(HelpTest, HelpFitsIntoANarrowTerminal) {
  const std::string command = "stty cols 60; " + BuildFolder() + "/dsat auto --help-all";
  work.Write("narrow.sh", "script -qec '" + command + "' /dev/null > shown.txt < /dev/null\n");
  ASSERT_EQ(std::system(("cd " + work.Path("") + " && sh narrow.sh").c_str()), 0);
  std::istringstream lines(ReadFile(work.Path("shown.txt")));
  size_t longest = 0;
  for (std::string line; std::getline(lines, line);) {
    // The terminal ends lines with a carriage return; commands to copy are not wrapped.
    if (!line.starts_with("  dsat ")) longest = std::max(longest, line.size() - 1);
  }
  EXPECT_LE(longest, 60U);
  EXPECT_GT(longest, 50U);
}

TEST_F(HelpTest, AWordThatIsUnknownIsNamedWithTheNearestOne) {
  const struct {
    std::vector<std::string> args;
    std::string message;
  } cases[] = {
      {{"shw"}, "unknown command \"shw\" (did you mean show?); dsat --help shows the commands"},
      {{"create", "ahsa", "x.yaml"}, "unknown command \"ahsa\" (did you mean asha?); dsat create "},
      {{"help", "shw"}, "unknown command \"shw\" (did you mean show?)"},
      {{"shw", "--help"}, "unknown command \"shw\" (did you mean show?)"},
      {{"--hepl"}, "unknown option \"--hepl\" (did you mean --help?)"},
      {{"-v"}, "unknown option \"-v\"; dsat --help shows"},
      {{"auto", "x.yaml", "--max_trials", "3"}, "\"--max_trials\" (did you mean --max-trials?)"},
      {{"auto", "x.yaml", "--max-trial=3"}, "\"--max-trial\" (did you mean --max-trials?)"},
      {{"auto", "x.yaml", "--metric", "throughputt"},
       "--metric: throughputt; expected FLOPS_per_gpu"},
      {{"auto", "x.yaml", "--metric", "throughputt"}, "; did you mean throughput?"},
      {{"export", "--format", "jsno"}, "--format: jsno; expected csv, json; did you mean json?"},
      {{"export", "--to", "excel"}, "--to: excel; expected mlflow, wandb, trackio, parquet"},
      {{"export", "--to", "mlflow", "--json"}, "--json excludes --to"},
  };
  for (const auto& [args, message] : cases) {
    work.ExpectRefused(args, message, 2);
  }
  EXPECT_EQ(work.Dsat({"help", "show"}).out, work.Dsat({"show", "--help"}).out);
  EXPECT_EQ(work.Dsat({"-V"}).out, work.Dsat({"--version"}).out);
}

TEST_F(HelpTest, ShellsCompleteCommandsOptionsAndValues) {
  EXPECT_THAT(work.Dsat({"complete", ""}).out, HasSubstr("\nreport\tWrite one HTML page"));
  EXPECT_THAT(work.Dsat({"complete", ""}).out, Not(HasSubstr("supervise")));
  EXPECT_THAT(work.Dsat({"complete", "create", ""}).out, HasSubstr("asha\t"));
  EXPECT_THAT(work.Dsat({"complete", "auto", "--"}).out, HasSubstr("--random-seed\t"));
  EXPECT_EQ(work.Dsat({"complete", "export", "--format", ""}).out, "csv\t\njson\t\n");
  EXPECT_EQ(work.Dsat({"complete", "auto", "--train-batch-size", "=", ""}).out, "keep\t\nany\t\n");
  // Files, and the user's own command.
  EXPECT_EQ(work.Dsat({"complete", "auto", ""}).out, "");
  EXPECT_EQ(work.Dsat({"complete", "auto", "--", "deepspeed", "--"}).out, "");
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    work.Write("dsat." + shell, work.Dsat({"completion", shell}).out);
    const std::string has = "command -v " + shell + " >/dev/null";
    if (std::system(has.c_str()) != 0) continue;
    EXPECT_EQ(std::system((shell + " -n " + work.Path("dsat." + shell)).c_str()), 0) << shell;
  }
  EXPECT_THAT(work.Dsat({"completion", "tcsh"}).err, HasSubstr("expected bash, zsh, fish"));
}

TEST_F(HelpTest, BashCompletesWhatIsTyped) {
  work.Write("bash.txt", work.Dsat({"completion", "bash"}).out);
  work.Write("try.sh", "export PATH=" + BuildFolder() +
                           ":$PATH\n. ./bash.txt\nCOMP_WORDS=(dsat auto --conf)\n"
                           "COMP_CWORD=2\n_dsat\necho \"${COMPREPLY[@]}\" > replies.txt\n");
  ASSERT_EQ(std::system(("cd " + work.Path("") + " && bash try.sh").c_str()), 0);
  EXPECT_EQ(ReadFile(work.Path("replies.txt")), "--confirm\n");
}

TEST_F(HelpTest, EveryCommandHasAManualPageWithAllOptions) {
  work.Succeed({"man", "man1"});
  const std::string page = ReadFile(work.Path("man1/dsat-create-asha.1"));
  EXPECT_TRUE(page.starts_with(".TH dsat\\-create\\-asha 1 "));
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-max\\-rungs\\fR \\fIN\\fR\n"));
  EXPECT_THAT(ReadFile(work.Path("man1/dsat.1")), HasSubstr("See dsat\\-report(1).\n"));
  EXPECT_FALSE(std::filesystem::exists(work.Path("man1/dsat-supervise.1")));
  if (std::system("command -v man >/dev/null") != 0) return;
  const std::string check =
      "cd " + work.Path("man1") + " && man --warnings -l dsat-auto.1 2>&1 >/dev/null";
  EXPECT_EQ(std::system(("test -z \"$(" + check + ")\"").c_str()), 0);
}

}  // namespace
}  // namespace dsat::cli
