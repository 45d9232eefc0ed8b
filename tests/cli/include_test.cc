// Runs searches with --include: trials, the full run and resumed trials find the included files by
// path and as Python modules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "base/files.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kExperimentFile[] = R"(
entrypoint: python3 train.py --behave well --deepspeed_config ds_config.json
hyperparameters: {deepspeed_config: ds_config.json}
)";
// The included module contains the whole training.
constexpr char kTrain[] = R"(
import os, sys, time
while os.path.exists("words/wait"):
    time.sleep(0.02)
print("words:", open("words/list.txt").read(), "path:", sys.path)
open("written-%d" % os.getpid(), "w").close()
import fake_deepspeed
)";
constexpr char kFakeDeepSpeed[] = DSAT_SOURCE_DIR "/tests/searcher/scripts/fake_deepspeed.py";

class IncludeTest : public testing::Test {
 protected:
  void SetUp() override {
    work.Write("model/deepspeed.yaml", kExperimentFile);
    work.Write("model/train.py", kTrain);
    work.Write("model/ds_config.json", R"({"train_micro_batch_size_per_gpu": 2})");
    work.Write("elsewhere/words/list.txt", "included");
  }
  // Arguments of a search, with `more` appended to the command line.
  static std::vector<std::string> Arguments(const std::vector<std::string>& more) {
    return Joined({"grid", "model/deepspeed.yaml", "--max-trials", "3", "--confirm", "0",
                   "--end-profile-step", "8", "--zero-stages", "1"},
                  more);
  }
  void Search(const std::vector<std::string>& more) const { work.Succeed(Arguments(more)); }

  Workspace work;
};

TEST_F(IncludeTest, TrialsAndTheFullRunFindWhatWasIncluded) {
  Search({"-i", "elsewhere/words", "--include", kFakeDeepSpeed, "--out", "out",
          "--run-full-experiment"});
  const std::string context = work.Path("out/context");
  for (const char* log : {"out/trials/1/attempt0/rank0.log", "out/full/rank0.log"}) {
    const std::string text = ReadFile(work.Path(log));
    EXPECT_THAT(text, AllOf(HasSubstr("words: included path: "), HasSubstr("'" + context + "'")))
        << log;
  }
  EXPECT_THAT(ReadFile(work.Path("out/full/rank0.log")), HasSubstr("full run with"));
  EXPECT_EQ(fs::read_symlink(context + "/train.py"), work.Path("model/train.py"));
  EXPECT_EQ(std::distance(fs::directory_iterator(work.Path("model")), fs::directory_iterator()), 3);
}

TEST_F(IncludeTest, AnInterruptedSearchGoesOnInTheSameFolder) {
  work.Write("elsewhere/words/wait", "");  // No trial ends before it is gone.
  const pid_t pid = work.StartDsat(
      Arguments({"-i", "elsewhere/words", "-i", kFakeDeepSpeed, "--out", "out"}), "search");
  EXPECT_TRUE(work.WaitUntilSaid("out/trials/0/attempt0/rank0.log"));
  kill(pid, SIGKILL);
  EXPECT_EQ(WaitFor(pid), 128 + SIGKILL);
  fs::remove(work.Path("elsewhere/words/wait"));
  work.Succeed({"resume", "1"});
  EXPECT_THAT(ReadFile(work.Path("out/trials/2/attempt0/rank0.log")),
              HasSubstr("'" + work.Path("out/context") + "'"));
}

TEST_F(IncludeTest, WithoutOutTheContextLiesBesideTheExperiments) {
  for (const char* name : {"context-1", "context-2"}) {
    Search({"-i", "elsewhere/words", "-i", kFakeDeepSpeed});
    EXPECT_TRUE(fs::exists(work.Path(std::string("dsat-out/") + name + "/words/list.txt")));
  }
}

TEST_F(IncludeTest, WhatCannotBeIncludedIsRefusedAndNothingIsLeft) {
  work.Write("elsewhere/train.py", "");
  for (const auto& [path, what] : std::vector<std::pair<std::string, std::string>>{
           {"elsewhere/none", "--include elsewhere/none: no such file"},
           {"elsewhere/train.py", work.Path("model/train.py") + " has the same name"},
           {"/", "it has no name"}}) {
    const Finished search = work.Fail(Arguments({"--include", path, "--out", "out"}), what);
    EXPECT_EQ(CountLines(search.err), 1) << search.err;
    EXPECT_FALSE(fs::exists(work.Path("out")));
  }
  // The experiment is refused after the context was made.
  work.Write("model/ds_config.json", R"({"zero_optimization": {"stage": 4}})");
  EXPECT_EQ(work.Dsat(Arguments({"-i", "elsewhere/words", "--out", "out"})).exit_code, 1);
  EXPECT_FALSE(fs::exists(work.Path("out/context")));
}

}  // namespace
}  // namespace dsat
