// Tests the answers of `dsat create`, `ask`, `tell`, `show` and `resume` about an experiment whose
// trials another program runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class AskTellTest : public testing::Test {
 protected:
  void SetUp() override {
    work.Write("train.py", "");
    work.Write("deepspeed.yaml",
               "name: \"2024\"\nentrypoint: python3 train.py --deepspeed_config {ds_config}\n"
               "resources: {slots_per_trial: 2}\n"
               "hyperparameters: {deepspeed_config: ds_config.json}\n");
    work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 2,
                                     "optimizer": {"type": "AdamW"},
                                     "zero_optimization": {"stage": 1}})");
    work.Write("profile.json", R"({"num_params": 1000000, "trainable_num_params": 1000000,
                                   "activation_bytes_per_sample": 1000000,
                                   "device_memory_bytes": 64000000})");
  }

  void Create(const std::string& method, const std::string& max_trials) const {
    work.Succeed({"create", method, "deepspeed.yaml", "--profile", "profile.json", "--metric",
                  "throughput", "--max-trials", max_trials});
  }
  Finished Tell(int trial, const Json& metrics) const {
    return work.Dsat({"tell", "1", "--trial", std::to_string(trial), "--metrics", "-", "--json"},
                     metrics.dump());
  }
  // Asks for the trial of this number and tells that it has run.
  void RunTrial(int trial) const {
    work.Succeed({"ask", "1"});
    EXPECT_EQ(Tell(trial, {{"throughput", 10 + trial}}).exit_code, 0);
  }

  Workspace work;
};

TEST_F(AskTellTest, NothingIsSaidToBeLeftWhileTheSearchGoesOn) {
  Create("auto", "20");
  RunTrial(0);
  EXPECT_THAT(work.Dsat({"show", "1"}).out,
              AllOf(HasSubstr("best: "), Not(HasSubstr("nothing was compared"))));
  RunTrial(1);
  EXPECT_THAT(work.Dsat({"show", "1"}).out, AllOf(HasSubstr("no other configuration is expected"),
                                                  Not(HasSubstr("searches longer"))));
}

TEST_F(AskTellTest, RaisedLimitsGiveMoreTrials) {
  Create("random", "2");
  RunTrial(0);
  RunTrial(1);
  EXPECT_THAT(work.Dsat({"ask", "1", "--json"}).out, HasSubstr(R"("finished":true)"));
  for (const std::vector<std::string>& limits : {std::vector<std::string>{},
                                                 {"--max-time", "1h"},
                                                 {"--max-trials", "9", "--max-time", "1h"}}) {
    work.Fail(Joined({"resume", "1"}, limits), "only its --max-trials can be raised");
  }
  EXPECT_EQ(work.Dsat({"resume", "1", "--max-trials", "3"}).err,
            "experiment 1: up to 3 trials; asked for so far: 2\n");
  RunTrial(2);
  EXPECT_THAT(work.Dsat({"ask", "1", "--json"}).out, HasSubstr(R"("finished":true)"));
}

TEST_F(AskTellTest, TheEndOfAnExperimentIsToldWithItsReason) {
  work.Succeed({"create", "random", "deepspeed.yaml"});
  work.Succeed({"ask", "1"});  // The profiling trial.
  const Json answer = work.DsatJson({"tell", "1", "--trial", "0", "--failed", "oops", "--json"});
  EXPECT_EQ(answer["experiment_state"], "failed");
  EXPECT_THAT(answer["reason"].get<std::string>(), HasSubstr("oops"));
  EXPECT_THAT(work.Fail({"ask", "1"}, "experiment failed: ").err, HasSubstr("oops"));
  const Finished asked = work.Fail({"ask", "1", "--json"}, "experiment failed: ");
  EXPECT_EQ(Json::parse(asked.out)["state"], "failed");
  EXPECT_EQ(Json::parse(asked.out)["finished"], true);
}

TEST_F(AskTellTest, WrongResultsAreRefusedWithWhatWouldBeRight) {
  Create("random", "5");
  work.Succeed({"ask", "1"});
  EXPECT_THAT(Tell(0, {{"latency", 3}, {"peak_bytes", 7}}).err,
              HasSubstr("without measuring throughput; told: latency, peak_bytes"));
  EXPECT_THAT(Tell(0, {{"speed", 3}}).err,
              HasSubstr("/speed: unknown key; expected one of FLOPS_per_gpu, throughput, "));
  const Finished both =
      work.Dsat({"tell", "1", "--trial", "0", "--metrics", "-", "--profile", "-"}, "{}");
  EXPECT_THAT(both.err, HasSubstr("--metrics and --profile cannot both read standard input"));
  EXPECT_EQ(work.Dsat({"create", "random", "deepspeed.yaml", "--run-full-experiment"}).exit_code,
            2);  // It would train nothing.
}

TEST_F(AskTellTest, TheBestConfigIsPrintedAsItIsWritten) {
  Create("random", "2");
  RunTrial(0);
  // The experiment's name is a number, too.
  const Json printed = work.DsatJson({"best", "2024", "--out", "best"});
  EXPECT_EQ(printed, ReadJsonFile(work.Path("best/ds_config.json")));
}

}  // namespace
}  // namespace dsat
