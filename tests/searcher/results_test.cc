// Tests the files that a search writes.
#include "searcher/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/files.h"
#include "base/version.h"
#include "proto/launch_settings.h"
#include "searcher/search/config_change.h"
#include "searcher/search/verdict.h"
#include "tests/searcher/search/simulated_trials.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ResultsTest : public ::testing::Test {
 protected:
  ResultsTest() : experiment_(Make()) {}

  Experiment Make() {
    ExperimentSpec spec = SearchSpec("random", 6);
    spec.ds_config["autotuning"] = {{"enabled", true}};
    return Experiment::Create(store_, spec);
  }

  // Profile, then one trial per throughput, the submitted configuration first.
  void Run(const std::vector<double>& throughputs) {
    const Outcome success{TrialState::kSucceeded, ""};
    experiment_.TellExternal(experiment_.Ask()->id, success, {}, SampleProfile());
    for (const double throughput : throughputs) {
      const std::optional<Trial> trial = experiment_.Ask();
      ASSERT_TRUE(trial.has_value());
      PointResult point =
          SamplePoint(throughput, IntAt(trial->ds_config, "/train_micro_batch_size_per_gpu", 0));
      experiment_.TellExternal(trial->id, success, {point}, {});
    }
  }

  Json Written(const std::string& name) const {
    return Json::parse(ReadFile(folder_ / name));  // Strict.
  }

  TempFolder folder_;
  Store store_ = Store::InMemory();
  Experiment experiment_;
};

TEST_F(ResultsTest, TheBestConfigIsWrittenReadyToUse) {
  Run({10, 30, 20});
  WriteResults(experiment_, folder_.path());
  const Json config = Written("ds_config.json");
  Json stated = experiment_.search().trials().at(2).ds_config;
  stated["gradient_clipping"] = 1.0;
  EXPECT_EQ(config, stated);  // Every knob of the stage is drawn by random.
  EXPECT_FALSE(config.contains("autotuning"));
  const int64_t micro_batch = config.at("train_micro_batch_size_per_gpu");
  const int64_t accumulation = config.at("gradient_accumulation_steps");
  EXPECT_EQ(config.at("train_batch_size"), micro_batch * accumulation * 2);  // 2 slots.
  EXPECT_THAT(folder_.Names(), ElementsAre("command.txt", "ds_config.json", "metrics.json"));
  EXPECT_THAT(ProductionCommand(experiment_.search().spec(), config, folder_.path(), false),
              AllOf(StartsWith("dsat train "), HasSubstr(folder_ / "ds_config.json")));
}

TEST_F(ResultsTest, OfTheTrainersArgumentsThoseAreWrittenThatAnAnswerChanges) {
  ExperimentSpec spec = SearchSpec("random", 12);
  spec.entrypoint = {"python3", "t.py"};
  spec.options.space = "wide";
  Experiment experiment = Experiment::Create(store_, spec);
  ModelProfile profile = SampleProfile();
  profile.trainer = {{"attn_implementation", "eager"}, {"num_experts", 4}};
  const Outcome success{TrialState::kSucceeded, ""};
  experiment.TellExternal(experiment.Ask()->id, success, {}, profile);
  std::set<std::string> written;
  for (int i = 0; i < 10; ++i) {
    const Trial trial = experiment.Ask().value();
    const Json given = TrainerArgumentsOf(trial.ds_config);
    const PointResult point =
        SamplePoint(1, IntAt(trial.ds_config, "/train_micro_batch_size_per_gpu", 0));
    experiment.TellExternal(trial.id, success, {point}, {});
    const Json kept = ConfigToKeep(experiment.search(), trial.id);
    const Json changed = given["attn_implementation"] == "eager"
                             ? Json()
                             : Json{{"trainer", {{"attn_implementation", "sdpa"}}}};
    EXPECT_EQ(kept.value("dsat", Json()), changed);
    written.insert(changed.dump());
  }
  EXPECT_EQ(written.size(), 2u) << "some change it, and some do not";
}

TEST_F(ResultsTest, TheSubmittedConfigStatesWhatTheSearchHasVaried) {
  Run({30, 20});
  WriteResults(experiment_, folder_.path());
  const Json config = Written("ds_config.json");
  EXPECT_FALSE(experiment_.search().trials().at(1).ds_config["zero_optimization"].contains(
      "reduce_bucket_size"));
  for (const StageSpace& stage : experiment_.search().space()->stages)
    ASSERT_NE(stage.stage, 0);  // It is the submitted config's, whose stage was not searched.
  EXPECT_EQ(config["gradient_clipping"], 1.0);
  EXPECT_EQ(config["zero_optimization"], Json({{"stage", 0}, {"overlap_comm", false}}));
  EXPECT_EQ(Written("metrics.json")["versions"], Json({{"dsat", kVersion}}));
}

TEST_F(ResultsTest, TheCommandOfAScriptAgreesWithItsConfig) {
  ExperimentSpec spec = experiment_.search().spec();
  spec.config_path = "/m/exp.yaml";
  spec.model_dir = "/m";
  spec.slots_per_trial = 4;
  bool by_hook = false;
  const auto command = [&](const std::vector<std::string>& entrypoint) {
    spec.entrypoint = entrypoint;
    return ProductionCommand(
        spec, {{"train_micro_batch_size_per_gpu", 51}, {"gradient_accumulation_steps", 2}}, "/o",
        by_hook);
  };
  EXPECT_EQ(command({"/v/python3", "t.py", "--deepspeed", "ds.json",
                     "--per_device_train_batch_size", "8", "--gradient_accumulation_steps=4"}),
            "cd /m && DSAT_DS_CONFIG=/o/ds_config.json /v/python3 -m torch.distributed.run "
            "--standalone --nproc_per_node 4 t.py --deepspeed /o/ds_config.json "
            "--per_device_train_batch_size 51 --gradient_accumulation_steps=2");
  spec.environment = {{"A", "b c"}};
  EXPECT_EQ(command({"sh", "-c", "torchrun t.py {ds_config} | tee log"}),
            "cd /m && A='b c' DSAT_DS_CONFIG=/o/ds_config.json sh -c 'torchrun "
            "--nproc_per_node 4 t.py /o/ds_config.json | tee log'");
  EXPECT_EQ(command({"torchrun", "--nproc_per_node=4", "t.py", "--ds_config", "ds.json"}),
            "cd /m && A='b c' DSAT_DS_CONFIG=/o/ds_config.json torchrun --nproc_per_node=4 t.py "
            "--ds_config /o/ds_config.json");
  EXPECT_EQ(command({"sh", "-c", "X=1 python t.py --ds_config $C"}),
            "cd /m && A='b c' DSAT_DS_CONFIG=/o/ds_config.json sh -c 'X=1 python -m "
            "torch.distributed.run --standalone --nproc_per_node 4 t.py --ds_config "
            "/o/ds_config.json'");
  by_hook = true;
  EXPECT_EQ(command({"python", "t.py", "--ds_config", "ds.json"}),
            "dsat train /m/exp.yaml --ds-config /o/ds_config.json");
  by_hook = false;
  spec.machine["host_options"] = " --hostfile /m/hosts";
  spec.model_dir = "/m/code";
  EXPECT_EQ(command({"python", "t.py", "--ds_config", "ds.json"}),
            "dsat train /m/exp.yaml /m/code --ds-config /o/ds_config.json --hostfile /m/hosts");
  spec.machine.erase("host_options");
  spec.model_dir = "/m";
  // The first needs dsat's import hook, and the second its ranks.
  for (const std::vector<std::string>& entrypoint :
       {std::vector<std::string>{"python", "t.py"}, {"./t", "--ds_config", "ds.json"}}) {
    EXPECT_EQ(command(entrypoint), "dsat train /m/exp.yaml --ds-config /o/ds_config.json");
  }
}

TEST_F(ResultsTest, MetricsNameTheBestTheSubmittedAndTheGain) {
  Run({10, 30, 20});
  experiment_.Ask();
  WriteResults(experiment_, folder_.path());
  const Json metrics = Written("metrics.json");
  EXPECT_EQ(metrics["experiment"]["id"], 1);
  EXPECT_EQ(metrics["experiment"]["name"], "sample");
  EXPECT_EQ(metrics["experiment"]["method"], "random");
  EXPECT_EQ(metrics["experiment"]["metric"], "throughput");
  EXPECT_EQ(metrics["experiment"]["random_seed"], 42);
  EXPECT_EQ(metrics["experiment"]["state"], "active");
  EXPECT_EQ(metrics["best_trial"]["trial"], 2);
  EXPECT_EQ(metrics["best_trial"]["metrics"]["throughput"],
            Json({{"value", 30.0}, {"spread", 0.5}, {"samples", 3}, {"unit", "samples/s"}}));
  EXPECT_EQ(metrics["best_trial"]["metrics"]["latency"]["unit"], "ms");
  EXPECT_EQ(metrics["submitted_trial"]["trial"], 1);
  EXPECT_EQ(metrics["submitted_trial"]["metrics"]["throughput"]["value"], 10.0);
  EXPECT_EQ(metrics["factor_over_submitted"]["value"], 3.0);
  EXPECT_EQ(metrics["factor_over_submitted"]["low"], nullptr);  // Nothing is confirmed.
  EXPECT_GT(metrics["factor_over_submitted"]["probability_faster"], 0.9);
  EXPECT_EQ(
      metrics["trials"],
      Json({{"running", 1}, {"succeeded", 4}, {"infeasible", 0}, {"failed", 0}, {"stopped", 0}}));
  EXPECT_EQ(metrics["model_profile"], ToJson(SampleProfile()));
}

TEST_F(ResultsTest, WithoutASuccessThereIsNoConfigButMetrics) {
  experiment_.TellExternal(experiment_.Ask()->id, {TrialState::kFailed, "crash"}, {}, {});
  for (const char* name : {"ds_config.json", "command.txt", "ds_config.safest.json"})
    WriteFileAtomic(folder_ / name, "of an answer that has dropped out");
  WriteResults(experiment_, folder_.path());
  EXPECT_THAT(folder_.Names(), ElementsAre("metrics.json"));
  const Json metrics = Written("metrics.json");
  EXPECT_TRUE(metrics["best_trial"].is_null());
  EXPECT_TRUE(metrics["factor_over_submitted"].is_null());
  EXPECT_TRUE(metrics["model_profile"].is_null());
  EXPECT_EQ(metrics["trials"]["failed"], 1);
}

TEST_F(ResultsTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_EQ(CodeOf([&] { WriteResults(experiment_, folder_ / "no/such"); }), ErrorCode::kNotFound);
}

TEST_F(ResultsTest, TheBestOfSeveralPointsSetsTheBatchSizes) {
  const Outcome success{TrialState::kSucceeded, ""};
  experiment_.TellExternal(experiment_.Ask()->id, success, {}, SampleProfile());
  PointResult best = SamplePoint(50, 8);
  best.point.accumulation_steps = 3;
  experiment_.TellExternal(experiment_.Ask()->id, success,
                           {SamplePoint(40, 4), best, SamplePoint(45, 16)}, {});
  EXPECT_EQ(BestPoint(experiment_.search().trials().at(1), "throughput")->point.micro_batch_size,
            8);
  const Json config = BestConfig(experiment_.search()).value();
  EXPECT_EQ(config["train_micro_batch_size_per_gpu"], 8);
  EXPECT_EQ(config["gradient_accumulation_steps"], 3);
  EXPECT_EQ(config["train_batch_size"], 48);
}

TEST(ResultsGainTest, AShorterLatencyIsTheLargerGain) {
  Store store = Store::InMemory();
  ExperimentSpec spec = SearchSpec("random");
  spec.options.metric = "latency";
  spec.profile = SampleProfile();
  Experiment experiment = Experiment::Create(store, spec);
  EXPECT_FALSE(VerdictOf(experiment.search()).factor.has_value());
  for (const double throughput : {10.0, 40.0}) {  // Latency is 8000 / throughput.
    experiment.TellExternal(experiment.Ask()->id, {TrialState::kSucceeded, ""},
                            {SamplePoint(throughput)}, {});
  }
  EXPECT_DOUBLE_EQ(VerdictOf(experiment.search()).factor.value().value, 4.0);
}

// Parses CSV strictly by RFC 4180.
std::vector<std::vector<std::string>> ParseCsv(const std::string& text) {
  std::vector<std::vector<std::string>> rows(1, std::vector<std::string>(1));
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string& field = rows.back().back();
    if (quoted && text[i] == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      field += text[++i];
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && text[i] == ',') {
      rows.back().emplace_back();
    } else if (!quoted && text.compare(i, 2, "\r\n") == 0) {
      rows.emplace_back(1);
      ++i;
    } else {
      field += text[i];
    }
  }
  rows.pop_back();  // After the last line end.
  return rows;
}

TEST_F(ResultsTest, CsvAndJsonExportsHoldEveryTrial) {
  Run({10, 30});
  const TrialId last = experiment_.Ask()->id;
  const std::string reason = "said \"no\", then\r\nleft";
  experiment_.TellExternal(last, {TrialState::kInfeasible, reason}, {}, {});
  const auto csv = ParseCsv(ExportTrials(store_, 1, "csv"));
  const Json json = Json::parse(ExportTrials(store_, 1, "json"));
  ASSERT_EQ(csv.size(), 5U);
  ASSERT_EQ(json.size(), 4U);
  EXPECT_THAT(ExportTrials(store_, 1, "csv"), StartsWith("experiment,trial,kind,confirms,state,"));
  for (size_t trial = 0; trial < json.size(); ++trial) {
    ASSERT_EQ(csv[trial + 1].size(), csv[0].size());
    for (size_t i = 0; i < csv[0].size(); ++i) {
      const Json& value = json[trial].at(csv[0][i]);
      const std::string text = value.is_null()     ? ""
                               : value.is_string() ? value.get<std::string>()
                                                   : value.dump();
      EXPECT_EQ(csv[trial + 1][i], text) << csv[0][i] << " of trial " << trial;
    }
  }
  EXPECT_EQ(json[2]["samples_per_s"], 30.0);
  EXPECT_EQ(json[2]["ds_config"], experiment_.search().trials().at(2).ds_config);
  EXPECT_EQ(json[3]["reason"], reason);
}

TEST_F(ResultsTest, ExportsOfWhatIsNotThereAreErrors) {
  EXPECT_EQ(CodeOf([&] { ExportTrials(store_, 9, "csv"); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { ExportTrials(store_, 1, "xml"); }), ErrorCode::kInvalidArgument);
}

TEST(ResultsMachineTest, TheMachineIsThatOfTheTrials) {
  ExperimentSpec spec;
  EXPECT_EQ(MachineOf(spec), "");
  spec.machine = {{"host", "vm, 2 cores"}, {"cores", 2}};
  EXPECT_EQ(MachineOf(spec), "vm, 2 cores");
  spec.machine = {{"hosts", {{"w0", 2}, {"w1", 2}}}};
  EXPECT_EQ(MachineOf(spec), "w0, w1");
}

TEST(ChangesOfTest, NamesWhatDiffers) {
  const Json from{{"train_micro_batch_size_per_gpu", 2}, {"zero_optimization", {{"stage", 1}}}};
  Json to = from;
  EXPECT_EQ(Describe(ChangesOf(from, to)), "");
  to["zero_optimization"] = {{"stage", 3},
                             {"reduce_bucket_size", 4e8},
                             {"allgather_bucket_size", 5e8},
                             {"overlap_comm", false},
                             {"offload_param", {{"device", "none"}}}};
  EXPECT_EQ(Describe(ChangesOf(from, to)),
            "stage 1 -> 3, overlap_comm false, reduce_bucket_size 4e8")
      << "the others are defaults, and that of overlap_comm is true at stage 3";
}

}  // namespace
}  // namespace dsat
