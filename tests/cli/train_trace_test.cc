// Runs dsat train --trace: it writes one file with all ranks, or says why it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <map>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;

const std::string kExperimentFile = std::string(R"(
entrypoint: builtin
resources: {slots_per_trial: 2}
searcher: {name: single, max_length: 12})") +
                                    kSmallTraining;
constexpr char kDsConfig[] = R"({
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 20000,
                        "offload_optimizer": {"device": "cpu"}}
})";

// The content of a trace file for one rank.
struct RankTrace {
  std::set<std::string> lanes_in_use;
  std::set<int64_t> steps;
  std::multiset<std::string> names;
};

std::map<int, RankTrace> ReadTrace(const std::string& path) {
  const Json root = ReadJsonFile(path);
  std::map<std::pair<int, int>, std::string> lanes;
  std::map<int, RankTrace> ranks;
  for (const Json& event : root.at("traceEvents")) {
    const int rank = event.at("pid");
    const std::pair lane = {rank, event.at("tid").get<int>()};
    if (event.at("name") == "thread_name") lanes[lane] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    ranks[rank].lanes_in_use.insert(lanes.at(lane));
    ranks[rank].names.insert(event.at("name").get<std::string>());
    if (event.at("name") == "step")
      ranks[rank].steps.insert(event.at("args").at("step").get<int64_t>());
  }
  return ranks;
}

class TrainTraceTest : public testing::Test {
 protected:
  void SetUp() override {
    work.Write("deepspeed.yaml", kExperimentFile);
    work.Write("ds_config.json", kDsConfig);
  }
  // Trains with `more` appended to the command line.
  Finished Train(const std::vector<std::string>& more) const {
    return work.Succeed(Joined({"train", "deepspeed.yaml"}, more));
  }

  Workspace work;
};

TEST_F(TrainTraceTest, TheFileHasTheStepsAfterWarmUpOfEveryRankAndEveryLane) {
  const Finished run = Train({"--trace", "trace.json"});
  EXPECT_THAT(run.err, HasSubstr("the trace is in " + work.Path("trace.json")));
  const std::map<int, RankTrace> ranks = ReadTrace(work.Path("trace.json"));
  ASSERT_EQ(ranks.size(), 2U);
  for (const auto& [rank, trace] : ranks) {
    EXPECT_EQ(trace.steps, (std::set<int64_t>{4, 5, 6}));
    EXPECT_EQ(trace.lanes_in_use,
              (std::set<std::string>{"steps", "compute", "communication", "copies"}));
    EXPECT_EQ(trace.names.count("norm"), 3U);
    EXPECT_THAT(trace.names, IsSupersetOf({"reduce-scatter", "all-gather", "wait for communication",
                                           "forward", "backward", "update", "to host"}));
  }
}

TEST_F(TrainTraceTest, StepsCountFromWhereTheRunGoesOnAndAShortRunShowsItsLast) {
  Train({"--steps", "5", "--trace", "trace.json", "--trace-steps", "2-3"});
  EXPECT_EQ(ReadTrace(work.Path("trace.json"))[0].steps, (std::set<int64_t>{2, 3}));
  Train({"--steps", "9", "--trace", "trace.json", "--trace-steps", "2"});
  EXPECT_EQ(ReadTrace(work.Path("trace.json"))[1].steps, (std::set<int64_t>{7}));
  Train({"--steps", "11", "--trace", "trace.json"});
  EXPECT_EQ(ReadTrace(work.Path("trace.json"))[0].steps, (std::set<int64_t>{10, 11}));
  EXPECT_THAT(Train({"--steps", "11", "--trace", "trace.json"}).err,
              HasSubstr("no trace: the run ended before"));
  EXPECT_FALSE(std::filesystem::exists(work.Path("trace.json")));
}

TEST_F(TrainTraceTest, ARunThatIsInterruptedLeavesWhatItHasTraced) {
  const pid_t pid = work.StartDsat({"train", "deepspeed.yaml", "--steps", "100000", "--trace",
                                    "trace.json", "--trace-steps", "99950-100000"},
                                   "late");
  const pid_t traced = work.StartDsat({"train", "deepspeed.yaml", "--steps", "100000", "--out",
                                       "other", "--trace", "some.json", "--trace-steps", "1-100"},
                                      "traced");
  // Only the start of both runs matters, not their end.
  for (const char* log : {"dsat-out/train/deepspeed/rank0.log", "other/rank0.log"})
    EXPECT_TRUE(work.WaitUntilSaid(log, "step="));
  kill(pid, SIGTERM);
  kill(traced, SIGTERM);
  EXPECT_EQ(WaitFor(pid), 130);
  EXPECT_EQ(WaitFor(traced), 130);
  EXPECT_FALSE(std::filesystem::exists(work.Path("trace.json")));
  EXPECT_THAT(ReadFile(work.Path("late.err")), HasSubstr("no trace"));
  const std::map<int, RankTrace> ranks = ReadTrace(work.Path("some.json"));
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(*ranks.at(0).steps.begin(), 1);
  EXPECT_EQ(ranks.at(0).steps, ranks.at(1).steps);
}

TEST_F(TrainTraceTest, WhatCannotBeTracedIsRefusedBeforeTheRun) {
  struct Case {
    std::vector<std::string> args;
    int exit_code;
    std::string what;
  };
  for (const Case& c : std::vector<Case>{
           {{"--trace", "nowhere/trace.json"}, 1, "nowhere/trace.json: No such file"},
           {{"--trace", "."}, 1, "is no file, and not a trace that dsat has written"},
           {{"--trace", "t.json", "--trace-steps", "6-4"}, 2, "6-4: expected FIRST-LAST"},
           {{"--trace", "t.json", "--trace-steps", "0-2"}, 2, "0-2: expected FIRST-LAST"},
           {{"--trace", "t.json", "--trace-steps", "1-101"}, 2, "at most 100 steps"},
           {{"--trace", "t.json", "--trace-steps", "two"}, 2, "two: expected FIRST-LAST"},
           {{"--trace-steps", "1-2"}, 2, "--trace"}}) {
    const Finished run =
        work.Fail(Joined({"train", "deepspeed.yaml"}, c.args), c.what, c.exit_code);
    EXPECT_EQ(CountLines(run.err), 1) << run.err;
    EXPECT_FALSE(std::filesystem::exists(work.Path("dsat-out/train/deepspeed/rank0.log")));
  }
  work.Write("deepspeed.yaml", R"(
entrypoint: python3 train.py --deepspeed_config ds_config.json
hyperparameters: {deepspeed_config: ds_config.json}
)");
  work.Fail({"train", "deepspeed.yaml", "--trace", "t.json"}, "expected builtin");
}

}  // namespace
}  // namespace dsat
