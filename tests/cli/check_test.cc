// Runs searches that are confirmed, checks their results again, and starts from configurations that
// do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

std::string ExperimentFile(const std::string& device_memory, int n_layer = 2, int n_embd = 64) {
  return R"(
name: tiny
entrypoint: builtin
resources: {slots_per_trial: 2, device_memory: )" +
         device_memory + R"(}
searcher: {name: single, max_length: {batches: 6}}
hyperparameters:
  deepspeed_config: ds_config.json
  model: {type: gpt2, n_head: 2, n_positions: 32, vocab_size: 256, n_layer: )" +
         std::to_string(n_layer) + ", n_embd: " + std::to_string(n_embd) + R"(}
  data: {type: text, path: /usr/share/common-licenses, seq_len: 32}
)";
}

std::string DsConfig(int stage, const std::string& more) {
  return R"({"train_micro_batch_size_per_gpu": 1,)" + more +
         R"("optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "zero_optimization": {"stage": )" +
         std::to_string(stage) +
         R"(, "reduce_bucket_size": 100000, "allgather_bucket_size": 100000}})";
}

class CheckTest : public testing::Test {
 protected:
  // Searches a model that fits as submitted; the result is in out/.
  Finished Search(const std::string& trials, const std::string& rounds) {
    work.Write("deepspeed.yaml", ExperimentFile("6MiB"));
    work.Write("ds_config.json", DsConfig(1, ""));
    return work.Succeed(
        {"binary", "deepspeed.yaml", "--max-trials", trials, "--confirm", rounds, "--out", "out"});
  }
  Workspace work;
};

TEST_F(CheckTest, WhatIsWrongOrIgnoredIsNamedWithItsFile) {
  work.Write("deepspeed.yaml", ExperimentFile("6MiB"));
  work.Write("ds_config.json", DsConfig(1, ""));
  work.Write("other.json", DsConfig(7, ""));
  work.Fail({"check", "ds_config.json", "--config", "deepspeed.yaml", "--against", "other.json"},
            "other.json: /zero_optimization/stage is 7", 2);
  work.Write("other.json", DsConfig(1, R"("unknown": 1, )"));
  // It is no folder: nothing runs.
  work.Fail({"check", "other.json", "--config", "deepspeed.yaml", "--out", "deepspeed.yaml"},
            "other.json: not a key of DeepSpeed, which ignores unknown keys: /unknown", 2);
}

TEST_F(CheckTest, ASearchIsConfirmedAndItsResultCanBeCheckedAgain) {
  const Finished search = Search("4", "2");
  const Json metrics = ReadJsonFile(work.Path("out/metrics.json"));
  EXPECT_EQ(metrics["verdict"]["confirm_rounds"], 2);
  // Two rounds on a busy machine may prove nothing; then the summary states a probability.
  EXPECT_THAT(search.out, AnyOf(testing::ContainsRegex("in[ \n]+2[ \n]+rounds"),
                                HasSubstr("faster with probability")));
  EXPECT_LT(metrics["factor_over_submitted"]["low"], metrics["factor_over_submitted"]["high"]);
  EXPECT_EQ(ReadFile(work.Path("out/command.txt")), "dsat train " + work.Path("deepspeed.yaml") +
                                                        " --ds-config " +
                                                        work.Path("out/ds_config.json") + "\n");

  // Any speed is within a tolerance of 99 %; none is as fast as this record.
  const Json result = work.DsatJson(
      {"check", "out/ds_config.json", "--confirm", "2", "--tolerance", "99%", "--json"});
  EXPECT_EQ(result["rounds"], 2);
  EXPECT_LE(result["factor"]["low"], result["factor"]["value"]);
  EXPECT_GT(result["part_of_recorded"]["value"], 0.01);
  EXPECT_LT(result["part_of_recorded"]["low"], result["part_of_recorded"]["high"]);
  Json record = metrics;
  record["verdict"]["speed"] = 1e12;
  WriteJsonFile(work.Path("out/metrics.json"), record);
  // The newest search, not the check after it.
  const Finished slower = work.Dsat({"check", "--confirm", "1"});
  EXPECT_EQ(slower.exit_code, 1) << slower.err;
  EXPECT_THAT(slower.out, HasSubstr("more than 3 % slower"));
  EXPECT_THAT(slower.out, HasSubstr("the speed of the submitted configuration is "));
  // Nothing is recorded of another model, and a check does not continue.
  work.Write("deepspeed.yaml", ExperimentFile("6MiB", 3));
  const std::vector<std::string> check = {"check", "out/ds_config.json", "--confirm", "1"};
  EXPECT_THAT(work.Succeed(check).err,
              HasSubstr("its hyperparameters have changed since the search"));
  work.Fail({"resume", "2"}, "is a check, which does not continue");
  work.Write("deepspeed.yaml", ExperimentFile("6MiB"));
  record["machine"] = "another";
  WriteJsonFile(work.Path("out/metrics.json"), record);
  EXPECT_THAT(work.Succeed(check).out, HasSubstr("was recorded on this machine"));
}

TEST_F(CheckTest, ARecordIsComparedOnlyWithWhatItIsOf) {
  Search("3", "1");
  const Json metrics = ReadJsonFile(work.Path("out/metrics.json"));
  Json record = metrics;
  // Another configuration was submitted then.
  record["experiment"]["ds_config"]["steps_per_print"] = 7;
  WriteJsonFile(work.Path("out/metrics.json"), record);
  EXPECT_THAT(work.Dsat({"check", "out/ds_config.json", "--confirm", "1"}).out,
              AllOf(HasSubstr("the present ds_config (another was submitted)"),
                    Not(HasSubstr("the submitted configuration"))));
  record["experiment"]["ds_config"] = metrics["experiment"]["ds_config"];
  // Where nothing better was found, the recorded factor is that of another configuration.
  record["verdict"]["nothing_better"] = true;
  record["factor_over_submitted"]["value"] = 1.5;
  WriteJsonFile(work.Path("out/metrics.json"), record);
  const Json same =
      Json::parse(work.Dsat({"check", "out/ds_config.json", "--confirm", "1", "--json"}).out);
  const double part = same["part_of_recorded"]["value"];
  EXPECT_NEAR(same["base_part_of_recorded"], part / same["factor"]["value"].get<double>(),
              1e-9 * part);
  // The record has an error, too.
  const auto width = [&](double error) {
    record["verdict"]["speed_error"] = error;
    record["verdict"]["speed_dof"] = 4;
    WriteJsonFile(work.Path("out/metrics.json"), record);
    const Json found =
        Json::parse(work.Dsat({"check", "out/ds_config.json", "--confirm", "2", "--json"}).out);
    return found["part_of_recorded"]["high"].get<double>() /
           found["part_of_recorded"]["low"].get<double>();
  };
  EXPECT_GT(width(2.0), std::exp(2 * 2.0 * 1.95));
  // A record that is no number, and a metric that is none, say which file they are in.
  record["verdict"]["speed"] = "fast";
  WriteJsonFile(work.Path("out/metrics.json"), record);
  EXPECT_THAT(work.Dsat({"check", "out/ds_config.json", "--confirm", "1"}).err,
              HasSubstr("out/metrics.json: /verdict/speed is \"fast\"; expected a positive"));
  record["verdict"]["speed"] = 1e12;
  record["experiment"]["metric"] = "bogus";
  WriteJsonFile(work.Path("out/metrics.json"), record);
  EXPECT_THAT(work.Dsat({"check", "out/ds_config.json"}).err,
              HasSubstr("out/metrics.json: /experiment/metric is \"bogus\"; expected one of"));
}

TEST_F(CheckTest, WhereTheSubmittedConfigurationDoesNotFitThePickIsComparedWithItsRecord) {
  work.Write("deepspeed.yaml", ExperimentFile("19MiB", 6, 128));
  work.Write("ds_config.json", DsConfig(0, ""));
  work.Succeed({"auto", "deepspeed.yaml", "--max-trials", "3", "--confirm", "1", "--out", "out"});
  const Finished check =
      work.Succeed({"check", "out/ds_config.json", "--confirm", "2", "--tolerance", "99%"});
  EXPECT_THAT(check.out, HasSubstr("the submitted configuration does not fit: rank "));
  EXPECT_THAT(check.out, HasSubstr(" %), measured in 2 rounds\n"));
  // --against asks for a comparison.
  work.Fail({"check", "out/ds_config.json", "--against", "ds_config.json"},
            "the two could not be compared", 2);
}

TEST_F(CheckTest, ASubmittedConfigurationThatFailsLaterIsNoMisfit) {
  // The submitted one has the batch size 1. It runs once and fails from then on.
  work.Write("train.py", R"(
import json, os, sys
config = json.load(open(sys.argv[1]))
batch = config["train_micro_batch_size_per_gpu"]
if batch == 1 and os.path.exists("ran"):
    sys.exit("boom")
open("ran" if batch == 1 else "other", "w").close()
report = {"step_seconds": [0.004], "samples": batch}
json.dump(report, open(os.environ["DSAT_TRIAL_DIR"] + "/hook-rank0.json", "w"))
)");
  work.Write("deepspeed.yaml",
             "name: fails\nentrypoint: python3 train.py {ds_config}\n"
             "resources: {slots_per_trial: 1}\n"
             "hyperparameters: {deepspeed_config: ds_config.json}\n");
  work.Write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 1})");
  work.Write("other.json", R"({"train_micro_batch_size_per_gpu": 2})");
  const Finished check =
      work.Fail({"check", "other.json", "--config", "deepspeed.yaml", "--metric", "throughput"},
                "the two could not be compared: trial 0 dropped out: failed: ", 2);
  EXPECT_THAT(check.err, HasSubstr("boom"));
}

TEST_F(CheckTest, ACheckThatCannotStartSaysWhatIsMissing) {
  work.Write("alone.json", DsConfig(1, ""));
  const Finished check = work.Fail({"check", "alone.json"}, "no metrics.json beside it", 2);
  EXPECT_THAT(check.err, HasSubstr("--config FILE"));
  work.Fail({"check", "alone.json", "--tolerance", "3"},
            "expected a percentage below 100% such as 3%, or 0.03, got 3", 2);
  work.Write("deepspeed.yaml", ExperimentFile("6MiB"));
  work.Write("ds_config.json", DsConfig(1, ""));
  work.Write("wrong.json", "{\"steps\": 3}");
  work.Fail({"check", "wrong.json", "--config", "deepspeed.yaml"}, "wrong.json: ", 2);
  EXPECT_FALSE(std::filesystem::exists(work.Path("dsat.db")));  // Nothing was measured.
}

TEST_F(CheckTest, TheMetricCanBeGiven) {
  work.Write("deepspeed.yaml", ExperimentFile("6MiB"));
  work.Write("ds_config.json", DsConfig(1, ""));
  work.Succeed({"check", "ds_config.json", "--config", "deepspeed.yaml", "--metric", "latency",
                "--confirm", "1", "--out", "out", "--json"});
  EXPECT_EQ(ReadJsonFile(work.Path("out/metrics.json"))["experiment"]["metric"], "latency");
}

TEST_F(CheckTest, AModelThatDoesNotFitAsSubmittedIsTunedAllTheSame) {
  work.Write("deepspeed.yaml", ExperimentFile("19MiB", 6, 128));
  work.Write("ds_config.json", DsConfig(0, ""));
  const Json summary = work.DsatJson({"binary", "deepspeed.yaml", "--max-trials", "5", "--confirm",
                                      "0", "--out", "out", "--json"});
  EXPECT_EQ(summary["trials"][0]["kind"], "profile");
  EXPECT_EQ(summary["trials"][0]["state"], "infeasible");
  EXPECT_EQ(summary["trials"][1]["kind"], "profile");
  EXPECT_EQ(summary["trials"][1]["ds_config"]["zero_optimization"]["stage"], 3);
  EXPECT_FALSE(summary["best_trial"].is_null());
  EXPECT_THAT(work.Dsat({"show", "1"}).out, HasSubstr("the submitted one does not fit"));
}

TEST_F(CheckTest, AFixedGlobalBatchStaysInEveryTrial) {
  work.Write("deepspeed.yaml", ExperimentFile("6MiB"));
  work.Write("ds_config.json", DsConfig(1, R"("train_batch_size": 16, )"));
  const Json summary = work.DsatJson({"binary", "deepspeed.yaml", "--max-trials", "6", "--confirm",
                                      "0", "--out", "out", "--json"});
  int num_sizes = 0;
  for (const Json& trial : summary["trials"]) {
    if (trial["kind"] != "search") continue;
    EXPECT_EQ(trial["ds_config"]["train_batch_size"], 16);
    num_sizes += trial["ds_config"]["train_micro_batch_size_per_gpu"] != 1 ? 1 : 0;
  }
  EXPECT_GT(num_sizes, 0);
}

}  // namespace
}  // namespace dsat
