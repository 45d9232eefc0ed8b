// Tests the text and JSON forms of experiments and trials.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "proto/experiment.h"
#include "proto/trial.h"
#include "proto/trial_task.h"
#include "tests/base/error_code.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// No field has its default value, so that the test notices a missing one.
ExperimentSpec FullSpec() {
  ExperimentSpec spec;
  spec.name = "n";
  spec.method = "asha";
  spec.entrypoint = {"python3", "train.py"};
  spec.config_path = "/c/deepspeed.yaml";
  spec.model_dir = "/c";
  spec.start_dir = "/s";
  spec.out_dir = "o";
  spec.slots_per_trial = 2;
  spec.device = "cuda";
  spec.device_memory_bytes = 1 << 20;
  spec.host_memory_bytes = 14;
  spec.environment = {{"NCCL_DEBUG", "INFO"}};
  spec.hyperparameters = {{"model", {{"type", "gpt2"}}}};
  spec.file = {{"searcher", {{"metric", "loss"}}}};
  spec.ds_config_path = "/c/ds_config.json";
  spec.ds_config = {{"train_batch_size", 8}};
  spec.max_restarts = 3;
  spec.max_length_steps = 7;
  spec.profile = ModelProfile{10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 11, 12};
  spec.candidate = {{"train_batch_size", 16}};
  spec.machine = {{"cpu", "c"}};
  spec.search_space = {{"bf16.enabled", {true, false}}};
  spec.where = {"/bf16/enabled == true"};
  spec.options = {
      .max_trials = 11,
      .max_concurrent_trials = 12,
      .max_slots = 13,
      .metric = "latency",
      .zero_stages = {1, 3},
      .random_seed = 14,
      .start_profile_step = 4,
      .end_profile_step = 6,
      .run_full_experiment = true,
      .train_batch_size = 64,
      .divisible_by = 2,
      .confirm_rounds = 5,
      .check_losses = true,
      .soak_steps = 7,
      .soak_in_budget = true,
      .profile = "dry-run",
      .loss_pattern = "loss: (.*)",
      .max_time_s = 60.5,
      .max_device_hours = 0.5,
      .compat_determined = true,
      .space = "wide",
      .allow_semantic = true,
      .auto_method = {.run_steps = 1000, .warm_start = "auto", .prior = {{"experiment", 1}}},
      .lineages = {.cover_stages = true, .search_range_factor = 1.5},
      .random = {.trials_per_random_config = 15, .early_stopping = 16},
      .asha = {.max_rungs = 17,
               .min_binary_search_trials = 18,
               .asha_early_stopping = 19,
               .divisor = 20}};
  return spec;
}

TEST(ExperimentSpecTest, JsonKeepsEveryField) {
  Json json = ToJson(FullSpec());
  Json defaults = ToJson(ExperimentSpec());
  for (const auto& [key, value] : json.items())
    EXPECT_NE(value, defaults[key]) << key;
  for (const auto& [key, value] : json["options"].items()) {
    EXPECT_NE(value, defaults["options"][key]) << key;
  }
  EXPECT_EQ(ToJson(ExperimentSpecFromJson(json)), json);
  EXPECT_EQ(ToJson(ExperimentSpecFromJson(Json::parse(json.dump()))), json);
  EXPECT_EQ(ToJson(ExperimentSpecFromJson(defaults)), defaults);
  ExperimentSpec back = ExperimentSpecFromJson(json);
  EXPECT_EQ(back.profile->trainable_num_params, 9);
  EXPECT_THAT(back.options.zero_stages, ElementsAre(1, 3));
  EXPECT_EQ(back.options.random.early_stopping, 16);
  EXPECT_EQ(back.options.asha.divisor, 20);
}

TEST(ExperimentSpecTest, UnknownKeysAndTypesAreRefusedByNameAndAbsentFieldsAreDefaults) {
  struct Case {
    const char* pointer;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"/extra", 1, "unknown key /extra; it was made by a newer dsat"},
      {"/options/extra", 1, "experiment/options: unknown key /extra"},
      {"/slots_per_trial", "2", "experiment/slots_per_trial is \"2\""},
      {"/slots_per_trial", 2.5, "experiment/slots_per_trial is 2.5"},
      {"/entrypoint", {1}, "experiment/entrypoint/0 is 1"},
      {"/environment", {{"A", 1}}, "experiment/environment/A is 1"},
      {"/options", 3, "experiment/options is a number; expected an object"},
      {"/options/compat_determined", 1, "experiment/options/compat_determined is 1"},
  };
  for (const Case& c : cases) {
    Json json = ToJson(FullSpec());
    SetAtPointer(json, c.pointer, c.value);
    EXPECT_THAT(RefusalOf([&] { ExperimentSpecFromJson(json); }), HasSubstr(c.message))
        << c.pointer;
  }
  Json json = ToJson(FullSpec());
  json["options"].erase("metric");
  json.erase("device");
  EXPECT_EQ(ToJson(ExperimentSpecFromJson(json))["options"]["metric"], SearchOptions().metric);
  EXPECT_EQ(ExperimentSpecFromJson(json).device, ExperimentSpec().device);
  EXPECT_EQ(ToJson(ExperimentSpecFromJson(Json::object())), ToJson(ExperimentSpec()));
}

TEST(TrialTaskTest, JsonKeepsEveryField) {
  TrialTask task;
  task.mode = TrialTask::Mode::kTrain;
  task.experiment = 1;
  task.trial = 2;
  task.attempt = 3;
  task.ds_config = {{"a", 1}};
  task.model = {{"b", 2}};
  task.data = {{"c", 3}};
  task.base_dir = "/base";
  task.device = "cuda";
  task.device_memory_bytes = 4;
  task.start_profile_step = 5;
  task.end_profile_step = 6;
  task.fixed_window = true;
  task.give_up_below = 6.5;
  task.train_steps = 7;
  task.seed = 8;
  task.checkpoint_dir = "/ckpt";
  task.host_memory_bytes = 10;
  task.checkpoint_tag = "t";
  task.training = {.checkpoint_interval = 9,
                   .checkpoint_seconds = 14,
                   .keep = 15,
                   .keep_best = true,
                   .eval_interval = 11,
                   .eval_batches = 16};
  task.history_path = "/metrics.jsonl";
  task.generate.prompt = "p";
  task.json = true;
  task.trace = {.path = "/trace.json", .first_step = 12, .last_step = 13};
  task.report_address = "unix:/x";
  Json json = ToJson(task);
  Json defaults = ToJson(TrialTask());
  for (const auto& [key, value] : json.items())
    EXPECT_NE(value, defaults[key]) << key;
  EXPECT_EQ(ToJson(TrialTaskFromJson(json)), json);
  EXPECT_EQ(TrialTaskFromJson(json).mode, TrialTask::Mode::kTrain);
  for (TrialTask::Mode mode : {TrialTask::Mode::kProfile, TrialTask::Mode::kMeasure}) {
    task.mode = mode;
    EXPECT_EQ(TrialTaskFromJson(ToJson(task)).mode, mode);
  }
  json["mode"] = "sleep";
  EXPECT_THAT(RefusalOf([&] { TrialTaskFromJson(json); }), HasSubstr("sleep"));
}

// By simulated measurements: the median of normal noise around 0, and its error.
TEST(TrialTest, TwoStandardErrorsCoverTheTruth) {
  const auto quantile = [](const std::vector<double>& sorted, double fraction) {
    const double position = fraction * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<size_t>(position);
    const size_t above = std::min(below + 1, sorted.size() - 1);
    return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
  };
  constexpr int kRuns = 4000;
  for (const int64_t samples : {2, 3, 4, 5, 8, 12, 30}) {
    Rng rng(7, static_cast<uint64_t>(samples), "noise");
    int covered = 0;
    for (int run = 0; run < kRuns; ++run) {
      std::vector<double> values;
      for (int64_t i = 0; i < samples; ++i)
        values.push_back(rng.Normal());
      std::sort(values.begin(), values.end());
      const double spread = (quantile(values, 0.75) - quantile(values, 0.25)) / 2;
      const Metric metric = {quantile(values, 0.5), spread, samples};
      covered += std::abs(metric.value) <= 2 * StandardError(metric) ? 1 : 0;
    }
    const double part = covered / static_cast<double>(kRuns);
    EXPECT_GT(part, samples == 2 ? 0.85 : 0.89) << samples << " samples";
    EXPECT_LT(part, 0.98) << samples << " samples";
  }
}

TEST(TrialTest, OneSampleSaysNothingOfItsError) {
  EXPECT_TRUE(std::isinf(StandardError({12.5, 0, 1})));
  EXPECT_TRUE(std::isinf(StandardError({12.5, 0, 0})));
  EXPECT_EQ(StandardError({12.5, 0, 2}), 0);
}

TEST(TrialTest, TextFormsReadBack) {
  for (TrialKind kind : {TrialKind::kProfile, TrialKind::kSubmitted, TrialKind::kSearch,
                         TrialKind::kConfirm, TrialKind::kReference, TrialKind::kSoak}) {
    EXPECT_EQ(Parse<TrialKind>(ToString(kind)), kind);
  }
  for (TrialState state : {TrialState::kRunning, TrialState::kSucceeded, TrialState::kInfeasible,
                           TrialState::kFailed, TrialState::kStopped}) {
    EXPECT_EQ(Parse<TrialState>(ToString(state)), state);
  }
  EXPECT_EQ(ToString(TrialState::kInfeasible), "infeasible");
  EXPECT_THAT(RefusalOf([] { Parse<TrialState>("done"); }),
              HasSubstr("\"done\"; expected one of running, succeeded"));
  EXPECT_EQ(CodeOf([] { Parse<TrialKind>("Profile"); }), ErrorCode::kInvalidArgument);
}

TEST(TrialTest, StageAndBatchSizesAreThoseOfTheConfig) {
  Trial trial;
  trial.ds_config = {{"train_batch_size", 64}, {"zero_optimization", {{"stage", 2}}}};
  EXPECT_EQ(ZeroStage(trial.ds_config), 2);
  SetPoint(trial.ds_config, {.micro_batch_size = 8, .accumulation_steps = 3});
  EXPECT_EQ(trial.ds_config, (Json{{"train_micro_batch_size_per_gpu", 8},
                                   {"gradient_accumulation_steps", 3},
                                   {"zero_optimization", {{"stage", 2}}}}));
  EXPECT_EQ(ConfigPoint(trial).micro_batch_size, 8);
  EXPECT_EQ(ConfigPoint(trial).accumulation_steps, 3);
  for (const Json& config : {Json::object(), Json{{"zero_optimization", {{"stage", "auto"}}}}})
    EXPECT_EQ(ZeroStage(config), 0);
}

TEST(MeasurementTest, BothFormsAreRead) {
  Measurement m = MeasurementFromJson(
      Json::parse(R"({"throughput": 12.5, "latency": {"value": 3, "spread": 0.5, "samples": 4}})"),
      "m");
  EXPECT_EQ(m["throughput"].value, 12.5);
  EXPECT_EQ(m["throughput"].samples, 1);
  EXPECT_EQ(m["latency"].spread, 0.5);
  EXPECT_EQ(ToJson(MeasurementFromJson(ToJson(m), "m")), ToJson(m));
}

TEST(MeasurementTest, MistakesAreNamed) {
  struct Case {
    const char* json;
    const char* message;
  };
  const Case cases[] = {
      {R"({"troughput": 1})", "m/troughput: unknown key; did you mean \"throughput\"?"},
      {R"({"latency": -1})", "m/latency is -1"},
      {R"({"latency": "3"})", "m/latency is \"3\""},
      {R"({"latency": null})", "m/latency is null"},
      {R"({"latency": {"spread": 1}})", "m/latency/value is missing"},
      {R"({"latency": {"value": 1, "samples": 1.5}})", "m/latency/samples is 1.5"},
      {R"({"latency": {"value": 1, "unit": "s"}})",
       "m/latency/unit: unknown key; expected one of value, spread, samples"},
      {R"([1])", "m is an array; expected an object"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(RefusalOf([&] { MeasurementFromJson(Json::parse(c.json), "m"); }),
                HasSubstr(c.message));
  }
  Json infinite = {{"latency", std::numeric_limits<double>::infinity()}};
  EXPECT_THAT(RefusalOf([&] { MeasurementFromJson(infinite, "m"); }), HasSubstr("m/latency"));
}

TEST(ProfileTest, ReadsWholeFloatsAndRefusesTheRest) {
  Json good = Json::parse(R"({"num_params": 1.5e9, "trainable_num_params": 1500000000,
      "activation_bytes_per_sample": 4, "device_memory_bytes": 5})");
  ModelProfile profile = ProfileFromJson(good, "p");
  EXPECT_EQ(profile.num_params, 1500000000);
  EXPECT_EQ(profile.forward_flops_per_sample, 0);
  EXPECT_EQ(profile.matmul_flops_per_s, 0);
  EXPECT_EQ(profile.micro_batch_1_peak_bytes, 0);
  EXPECT_EQ(ToJson(ProfileFromJson(ToJson(profile), "p")), ToJson(profile));
  for (const auto& [key, value] : good.items()) {
    Json bad = good;
    bad[key] = -1;
    EXPECT_THAT(RefusalOf([&] { ProfileFromJson(bad, "p"); }), HasSubstr("p/" + key + " is -1"));
    bad.erase(key);
    EXPECT_EQ(RefusalOf([&] { ProfileFromJson(bad, "p"); }),
              "p: \"" + key + "\" is missing (docs/ask-tell.md)");
  }
  Json impossible = good;
  impossible["num_params"] = 3;
  EXPECT_THAT(RefusalOf([&] { ProfileFromJson(impossible, "p"); }),
              HasSubstr("p/trainable_num_params is 1500000000; expected at most num_params, 3"));
  Json timed = good;
  timed["timings"] = {{1, 3, 0.5}, {2, 5, 0.5}};
  EXPECT_EQ(ProfileFromJson(timed, "p").timings[1][1], 5);
  for (const char* bad :
       {"[[1, 3]]", "[[2, 3, 0.5], [2, 5, 0.5]]", "[[1, 0, 0.5]]", "[[0, 3, 1]]"}) {
    timed["timings"] = Json::parse(bad);
    EXPECT_THAT(RefusalOf([&] { ProfileFromJson(timed, "p"); }), HasSubstr("p/timings")) << bad;
  }
  good["num_param"] = 1;
  EXPECT_THAT(RefusalOf([&] { ProfileFromJson(good, "p"); }), HasSubstr("\"num_params\"?"));
}

TEST(ProfileTest, DeepSpeedsModelInfoIsTakenAsItIs) {
  Json model_info = Json::parse(R"({"num_params": 10, "trainable_num_params": 9,
      "activation_mem_per_gpu": 0, "gpu_mem": 5, "rank": 0})");
  ModelProfile profile = ProfileFromJson(model_info, "model_info.json");
  EXPECT_EQ(profile.activation_bytes_per_sample, 0);
  EXPECT_EQ(profile.device_memory_bytes, 5);
}

TEST(AssignmentTest, JsonReadsBack) {
  Assignment assignment = {{"/zero_optimization/stage", 2}, {"/bf16", {{"enabled", true}}}};
  EXPECT_EQ(AssignmentFromJson(assignment), assignment);
  EXPECT_EQ(CodeOf([] { AssignmentFromJson({{"stage", 1}}); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf([] { AssignmentFromJson(Json::array()); }), ErrorCode::kInvalidArgument);
}

TEST(MetricTest, BestPointFollowsTheDirection) {
  Trial trial;
  for (double value : {3.0, 5.0, 4.0}) {
    Measurement m;
    m["throughput"].value = value;
    m["latency"].value = value;
    trial.points.push_back({{1, 1}, m});
  }
  trial.points.push_back({{2, 1}, {}});
  EXPECT_EQ(MetricValue(trial, "throughput"), 5.0);
  EXPECT_EQ(MetricValue(trial, "latency"), 3.0);
  EXPECT_EQ(MetricValue(trial, "forward"), std::nullopt);
  EXPECT_EQ(MetricValue(Trial(), "throughput"), std::nullopt);
}

TEST(MetricTest, SearchMetricsInTheOrderShown) {
  EXPECT_THAT(SearchMetrics(),
              ElementsAre("FLOPS_per_gpu", "throughput", "latency", "forward", "backward"));
  EXPECT_FALSE(SmallerIsBetter("FLOPS_per_gpu"));
  EXPECT_FALSE(SmallerIsBetter("throughput"));
  for (const char* metric : {"latency", "forward", "backward"}) {
    EXPECT_TRUE(SmallerIsBetter(metric)) << metric;
    EXPECT_EQ(MetricUnit(metric), "ms");
  }
  EXPECT_EQ(MetricUnit("throughput"), "samples/s");
}

}  // namespace
}  // namespace dsat
