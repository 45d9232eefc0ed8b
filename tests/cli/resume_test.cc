// Searches that are interrupted and resumed, and what their options leave in the database.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <filesystem>
#include <regex>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kExperimentFile = std::string(R"(
name: tiny
entrypoint: builtin
resources: {slots_per_trial: 2, device_memory: 6MiB}
searcher: {name: single, max_length: {batches: 6}})") +
                                    kSmallTraining;

class ResumeTest : public testing::Test {
 protected:
  void SetUp() override {
    work.Write("deepspeed.yaml", kExperimentFile);
    work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1}})");
  }
  Json Listed() const { return Json::parse(work.Dsat({"list", "--json"}).out).at(0); }
  int64_t NumTrials(const std::string& where) const {
    return work.DsatJson({"query", "--json", "SELECT count(*) AS n FROM trials WHERE " + where})
        .at(0)
        .at("n");
  }
  // An option of the newest experiment.
  Json Option(const std::string& name) const {
    return work
        .DsatJson({"query", "--json",
                   "SELECT spec ->> '$.options." + name +
                       "' AS value FROM experiments ORDER BY id DESC LIMIT 1"})
        .at(0)
        .at("value");
  }

  Workspace work;
};

TEST_F(ResumeTest, AnInterruptedSearchSaysSoAndShowsItsBestSoFar) {
  const pid_t pid =
      work.StartDsat({"grid", "deepspeed.yaml", "--max-trials", "40", "--out", "out"}, "search");
  EXPECT_TRUE(work.WaitUntilSaid("search.err", "trial   1"));
  EXPECT_THAT(work.Dsat({"list"}).out, HasSubstr(" active "));
  const auto shown = [this] { return work.DsatJson({"show", "1", "--json"}); };
  EXPECT_EQ(Listed()["running"], true);
  EXPECT_EQ(shown()["running"], true);
  kill(pid, SIGINT);
  EXPECT_EQ(WaitFor(pid), 130);
  // No process of this search is left: their command lines name the task files in this folder.
  EXPECT_THAT(ProcessesWith(work.Path("")), testing::IsEmpty());
  const std::string said = ReadFile(work.Path("search.err"));
  EXPECT_THAT(said, HasSubstr("dsat resume 1"));
  EXPECT_THAT(said, testing::ContainsRegex("\n(keep the submitted|up to [0-9.]+ times as fast)"));
  EXPECT_THAT(said, HasSubstr("next: sh out/command.txt   dsat check out/ds_config.json\n"));
  EXPECT_THAT(said, HasSubstr("\n      report: out/report.html\n"));
  EXPECT_THAT(ReadFile(work.Path("out/report.html")), HasSubstr("interrupted"));
  EXPECT_TRUE(std::filesystem::exists(work.Path("out/ds_config.json")));
  EXPECT_THAT(work.Dsat({"list"}).out, HasSubstr(" interrupted "));
  EXPECT_THAT(work.Dsat({"show", "1"}).out, HasSubstr("experiment 1 (tiny), grid, interrupted\n"));
  EXPECT_EQ(Listed()["running"], false);
  EXPECT_EQ(shown()["running"], false);
  EXPECT_EQ(Listed()["state"], "active");

  const pid_t again = work.StartDsat({"resume", "1"}, "again");
  EXPECT_TRUE(work.WaitUntilSaid("again.err", "continuing after "));
  kill(again, SIGINT);
  EXPECT_EQ(WaitFor(again), 130);
  EXPECT_THAT(ReadFile(work.Path("again.err")),
              testing::ContainsRegex("continuing after [0-9]+ trials\n"));
}

TEST_F(ResumeTest, WhatTrialsNeedIsCheckedBeforeTheyRun) {
  work.Write("deepspeed.yaml",
             std::regex_replace(kExperimentFile, std::regex("path: [^,]*"), "path: text.txt"));
  work.Write("text.txt", std::string(4096, 'x'));
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "3", "--confirm", "0"});
  std::filesystem::remove(work.Path("text.txt"));
  work.Fail({"resume", "1", "--max-trials", "5"}, "text.txt: no such file");
  EXPECT_EQ(Listed()["trials"], 3);
  EXPECT_EQ(Option("max_trials"), 3);
}

TEST_F(ResumeTest, AnotherMachineThanBeforeIsSaid) {
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0"});
  EXPECT_THAT(work.Dsat({"resume", "1"}).err, Not(HasSubstr("another machine")));
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core cannot be made fewer";
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const Finished resumed = work.Dsat({"resume", "1", "--slots", "2"});
  sched_setaffinity(0, sizeof(all), &all);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("on another machine or with other packages"));
  EXPECT_THAT(resumed.err, HasSubstr(fmt::format("cores was {} and is 1", CPU_COUNT(&all))));
}

TEST_F(ResumeTest, ATrainingOfAnotherPickIsNotContinued) {
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0",
                "--run-full-experiment", "--out", "out"});
  const Finished same = work.Succeed({"resume", "1", "--json"});
  EXPECT_THAT(same.err, HasSubstr("there is nothing left to train"));
  EXPECT_EQ(Json::parse(same.out)["full_run"]["last_step"], 6);
  EXPECT_TRUE(Json::parse(same.out)["full_run"]["loss"].is_number());
  Json task = ReadJsonFile(work.Path("out/full/task.json"));
  task["ds_config"]["zero_optimization"]["stage"] = 3;
  WriteJsonFile(work.Path("out/full/task.json"), task);
  work.Fail({"resume", "1"}, "/out/full: this training was begun with another ");
}

TEST_F(ResumeTest, ASearchGoesOnWithoutItsTerminal) {
  const std::vector<std::string> grid = {"grid", "deepspeed.yaml", "--max-trials", "4", "--confirm",
                                         "0",    "--out",          "out"};
  std::filesystem::create_symlink("/dev/full", work.Path("search.err"));
  const pid_t pid = work.StartDsat(grid, "search");
  ASSERT_TRUE(work.WaitUntilSaid("out/experiment.json"));  // It handles signals by then.
  kill(pid, SIGHUP);
  EXPECT_EQ(WaitFor(pid), 0);
  EXPECT_EQ(Listed()["state"], "completed");
  EXPECT_THAT(ReadFile(work.Path("search.out")), HasSubstr("out/ds_config.json"));
}

TEST_F(ResumeTest, ATrainingWhoseOutputCannotBeWrittenEndsAndSaysSo) {
  std::filesystem::create_symlink("/dev/full", work.Path("train.out"));
  const pid_t train = work.StartDsat({"train", "deepspeed.yaml", "--steps", "2"}, "train");
  EXPECT_EQ(WaitFor(train), 1);
  const std::string said = ReadFile(work.Path("train.err"));
  EXPECT_THAT(said, HasSubstr("done; the checkpoint is in "));
  EXPECT_THAT(said, HasSubstr("cannot write to standard output: it does not have the whole"));
}

TEST_F(ResumeTest, TwoDatabasesInOneFolderDoNotShareResults) {
  for (const std::string db : {"a.db", "b.db"}) {
    work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "3", "--confirm", "0", "--db", db});
  }
  const Json a = ReadJsonFile(work.Path("dsat-out/1/experiment.json"));
  const Json b = ReadJsonFile(work.Path("dsat-out/1-2/experiment.json"));
  EXPECT_EQ(a["database"], std::filesystem::canonical(work.Path("a.db")).string());
  EXPECT_EQ(b["database"], std::filesystem::canonical(work.Path("b.db")).string());
  work.Fail({"grid", "deepspeed.yaml", "--db", "b.db", "--out", "dsat-out/1"},
            "this folder has the results of experiment 1 of");
}

TEST_F(ResumeTest, AnExperimentOfAnotherProgramIsWaitingAndCanBeRunHere) {
  work.Succeed({"create", "grid", "deepspeed.yaml", "--max-trials", "2"});
  EXPECT_EQ(Option("confirm_rounds"), 0);
  EXPECT_THAT(work.Dsat({"list"}).out, Not(HasSubstr("interrupted")));
  work.Succeed({"resume", "1"});
  EXPECT_TRUE(std::filesystem::exists(work.Path("dsat-out/1/ds_config.json")));
}

TEST_F(ResumeTest, TrialsThatAnotherProgramHasAskedForAreNotOurs) {
  work.Succeed({"create", "grid", "deepspeed.yaml", "--max-trials", "2"});
  work.Succeed({"ask", "1"});
  work.Fail({"resume", "1"}, "the program that has asked for its trials runs them");
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0"});
  for (const Finished& other :
       {work.Dsat({"ask", "2"}), work.Dsat({"tell", "2", "--trial", "0", "--failed", "x"})}) {
    EXPECT_EQ(other.exit_code, 1);
    EXPECT_THAT(other.err, HasSubstr("experiment 2: a search of dsat runs its trials"));
  }
}

TEST_F(ResumeTest, ALimitThatIsUsedUpEndsAResumedSearchAtOnce) {
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "4", "--confirm", "1"});
  const auto num_trials = [this] { return Listed()["num_trials"]; };
  const Json before = num_trials();
  work.Succeed({"resume", "1", "--max-trials", "40", "--max-time", "0.01s"});
  EXPECT_EQ(num_trials(), before);
}

TEST_F(ResumeTest, WhatKeepsNothingOrIsEmptyIsRefused) {
  work.Fail({"grid", "deepspeed.yaml", "--db", ":memory:"}, "is :memory:, which would keep nothing",
            2);
  work.Fail({"train", "deepspeed.yaml", "--ds-config", ""}, "--ds-config: it is empty", 2);
}

TEST_F(ResumeTest, ASearchThatHasEndedGoesOnWithNewLimits) {
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "3", "--confirm", "1"});
  EXPECT_EQ(NumTrials("confirms IS NULL"), 3);
  work.Succeed(
      {"resume", "1", "--max-trials", "5", "--max-time", "90m", "--max-device-hours", "9"});
  EXPECT_EQ(NumTrials("confirms IS NULL"), 5);
  EXPECT_EQ(Option("max_trials"), 5);
  EXPECT_EQ(Option("max_time_s"), 5400);
  EXPECT_EQ(Option("max_device_hours"), 9);
  work.Succeed({"show", "1"});  // Its log replays.
}

TEST_F(ResumeTest, ASearchWithTimeForItsProfileOnlyMeasuresTheSubmittedConfiguration) {
  const Finished search =
      work.Succeed({"auto", "deepspeed.yaml", "--max-time", "0.3s", "--out", "out"});
  EXPECT_THAT(search.err, HasSubstr("the search ends: --max-time: the search has run for "));
  EXPECT_THAT(search.out, HasSubstr("no other configuration was measured\n"));
  work.Succeed({"train", "deepspeed.yaml", "--ds-config", "out/ds_config.json", "--steps", "1",
                "--out", "trained"});
}

TEST_F(ResumeTest, RoundsThatAreMissingAreRunAndNothingElse) {
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "3", "--confirm", "1"});
  EXPECT_EQ(NumTrials("kind = 'confirm' AND confirms = 1"), 1);
  work.Succeed({"resume", "1", "--confirm", "3"});
  EXPECT_EQ(Option("confirm_rounds"), 3);
  EXPECT_EQ(NumTrials("confirms IS NULL"), 3);
  EXPECT_GE(NumTrials("kind = 'confirm' AND confirms = 1"), 2);
  EXPECT_LE(NumTrials("kind = 'confirm' AND confirms = 1"), 3);
  const Json shown = Json::parse(work.Dsat({"show", "1", "--json"}).out);  // Its log replays.
  EXPECT_GE(shown["verdict"]["confirm_rounds"], 2);
  EXPECT_TRUE(shown["factor_over_submitted"]["low"].is_number());
}

TEST_F(ResumeTest, TrialsThatShareCoresAreWarnedOf) {
  const auto errors = [this](const std::vector<std::string>& more) {
    return work
        .Succeed(Joined({"grid", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0"}, more))
        .err;
  };
  EXPECT_THAT(errors({"--slots", "4096"}), HasSubstr("--slots 4096: this machine has "));
  for (const std::vector<std::string>& fine : std::vector<std::vector<std::string>>{
           {}, {"--slots", "4096", "--max-slots", "2"}, {"--slots", "2"}})
    EXPECT_THAT(errors(fine), Not(HasSubstr("share them")));
}

TEST_F(ResumeTest, TheOptionsOfASearchAreRecorded) {
  const auto search = [this](std::vector<std::string> args) {
    args.insert(args.begin() + 1, {"deepspeed.yaml", "--max-trials", "2"});
    work.Succeed(args);
  };
  search({"asha", "--train-batch-size", "8", "--divisible-by", "2", "--max-time", "2h",
          "--max-device-hours", "1.5"});
  EXPECT_EQ(Option("confirm_rounds"), 9);
  EXPECT_EQ(Option("train_batch_size"), 8);
  EXPECT_EQ(Option("divisible_by"), 2);
  EXPECT_EQ(Option("max_time_s"), 7200);
  EXPECT_EQ(Option("max_device_hours"), 1.5);
  EXPECT_EQ(Option("zero_stages"), "[1,2,3]");
  search({"asha", "--compat", "determined"});
  EXPECT_EQ(Option("confirm_rounds"), 0);
  EXPECT_EQ(Option("train_batch_size"), Json());
  search({"asha", "--confirm", "1", "--compat", "determined"});
  EXPECT_EQ(Option("confirm_rounds"), 1);
  search({"auto", "--confirm", "0"});
  EXPECT_EQ(Option("warm_start"), "auto");
  EXPECT_EQ(Option("prior.experiment"), 3);  // The newest of those with the same model.
  search({"auto", "--confirm", "0", "--warm-start", "off"});
  EXPECT_EQ(Option("prior"), Json());
  const Json machine =
      work.DsatJson({"query", "--json", "SELECT spec -> '$.machine' AS value FROM experiments"});
  ASSERT_EQ(machine.size(), 5U);
  for (const char* key : {"dsat", "host", "cpu", "cores"})
    EXPECT_THAT(machine[0]["value"].get<std::string>(), HasSubstr(std::string("\"") + key + "\":"));
}

TEST_F(ResumeTest, TheSpeedsOfADiskForOffloadAreRecorded) {
  work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 1,
      "optimizer": {"type": "AdamW"},
      "zero_optimization": {"stage": 1,
                            "offload_optimizer": {"device": "none", "nvme_path": "."}}})");
  work.Succeed({"grid", "deepspeed.yaml", "--max-trials", "2", "--confirm", "0"});
  const Json disk = work.DsatJson(
      {"query", "--json", "SELECT spec -> '$.machine.disk' AS value FROM experiments"});
  const Json speeds = Json::parse(disk[0]["value"].get<std::string>());
  EXPECT_GT(speeds.at("read_bytes_per_s"), 0);
  EXPECT_GT(speeds.at("write_bytes_per_s"), 0);
}

}  // namespace
}  // namespace dsat
