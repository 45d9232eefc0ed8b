// Tests the page of a report: it is well-formed, shows every trial with the figures of dsat show,
// and lets no text of a user become markup.
#include "cli/report/page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "cli/output/output.h"
#include "cli/report/report.h"
#include "searcher/results.h"
#include "tests/cli/report/read_page.h"
#include "tests/searcher/search/simulated_trials.h"
#include "tests/temp_folder.h"

namespace dsat::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kHostile[] =
    "</script><img src=x onerror=alert(1)>&amp;\"' ]]> --> <!-- \x1b[31m \xEF\xBF\xBE";

// A search with everything that a page shows: two slots, a confirmation, references and a soak.
ExperimentSpec WholeSpec() {
  ExperimentSpec spec = SearchSpec("random", 24);
  spec.ds_config["zero_optimization"]["stage"] = 1;
  spec.options.max_concurrent_trials = 2;
  spec.options.confirm_rounds = 3;
  spec.options.check_losses = true;
  spec.options.soak_steps = 40;
  spec.machine = {{"host", "node-7, 64 cores"}, {"cpu", "a processor"}, {"dsat", "0"}};
  return spec;
}

// A machine with noise: larger micro-batches are faster until memory ends. One that soaks first may
// train otherwise.
class NoisyMachine {
 public:
  explicit NoisyMachine(bool first_soak_differs = false) : differs_(first_soak_differs) {}

  void Run(Experiment& experiment, TrialId id, double start_s) {
    const Trial trial = experiment.search().trials().at(id);
    const int64_t attempt = experiment.StartAttempt(id, "/logs");
    Outcome outcome{TrialState::kSucceeded, ""};
    const int64_t size = IntAt(trial.ds_config, "/train_micro_batch_size_per_gpu", 1);
    if (trial.kind == TrialKind::kProfile) {
      experiment.RecordMeasured(id, attempt, std::nullopt, SampleProfile());
    } else if (size > 40) {
      outcome = {TrialState::kInfeasible, "out of memory: 1.2 GiB needed, 1.0 GiB free"};
    } else if (trial.kind == TrialKind::kSearch && id % 9 == 0) {
      outcome = {TrialState::kFailed, std::string("rank 1: exit code 1: ") + kHostile};
    } else {
      experiment.RecordMeasured(id, attempt, Measured(trial, size), std::nullopt);
    }
    experiment.EndAttempt(id, attempt, outcome, kHostile);
    experiment.Tell(id, outcome, {.started_s = start_s, .ended_s = start_s + 8});
  }

  // Runs up to `most` trials to their end.
  void Drive(Experiment& experiment, int most = 1000) {
    for (int i = 0; i < most; ++i) {
      while (experiment.Ask()) {
      }
      const std::vector<TrialId> running = experiment.search().Running();
      if (running.empty()) {
        experiment.SetState(ExperimentState::kCompleted, "");
        return;
      }
      Run(experiment, running.front(), 5.0 * i);
    }
  }

 private:
  PointResult Measured(const Trial& trial, int64_t size) {
    Rng rng(1, static_cast<uint64_t>(trial.id), "noise");
    const double noise = 1 + 0.02 * (rng.Uniform() - 0.5);
    const auto stage = static_cast<double>(IntAt(trial.ds_config, "/zero_optimization/stage", 0));
    const double b = static_cast<double>(size);
    PointResult result = SamplePoint((300 * b / (6 + b) - 9 * stage) * noise, size);
    result.point = ConfigPoint(trial);
    result.measurement["peak_bytes"] = {(120 + (20 - 2 * stage) * b) * 1048576, 0, 3};
    const bool is_wrong = differs_ && trial.kind == TrialKind::kSoak && num_soaks_++ == 0;
    for (int i = 0; i < (trial.kind == TrialKind::kSoak ? 40 : 8); ++i)
      result.losses.push_back(is_wrong ? 4 : 1 + 3 * std::exp(-0.05 * i));
    return result;
  }

  bool differs_;
  int num_soaks_ = 0;
};

class PageTest : public ::testing::Test {
 protected:
  PageTest() : store_(Store::Open(folder_ / "dsat.db", Store::Mode::kCreate)) {}

  void SetUp() override {
    if (!HasPython()) GTEST_SKIP() << "no Python reads the page; set DSAT_TEST_PYTHON";
  }

  std::string Page(ExperimentId id) {
    experiment_.emplace(Experiment::Open(store_, id));
    Report report = ReadReport(store_, id, &*experiment_);
    report.out_dir = "/home/user/dsat-out/1";
    return ReportPage(report);
  }

  // The page of an experiment as a strict parser reads it.
  Json Read(const std::string& page) const {
    const std::string path = folder_ / "page.html";
    WriteFileAtomic(path, page);
    Json read = ReadPage(path);
    if (!read.is_object()) return Json::object();
    EXPECT_THAT(read["repeated_ids"], IsEmpty());
    EXPECT_THAT(read["links"], IsEmpty());  // Nothing is loaded.
    EXPECT_THAT(read["svgs_without_names"], IsEmpty());
    EXPECT_EQ(read["script_is_allowed"], Json::array({true}));
    return read;
  }

  TempFolder folder_;
  Store store_;
  std::optional<Experiment> experiment_;
};

std::vector<std::string> PlotsOf(const Json& page) {
  std::vector<std::string> ids;
  for (const Json& plot : page.at("plots"))
    ids.push_back(plot.at("id"));
  return ids;
}

TEST_F(PageTest, EveryTrialIsInTheTableWithTheFiguresOfShow) {
  Experiment experiment = Experiment::Create(store_, WholeSpec());
  NoisyMachine().Drive(experiment);
  const Json page = Read(Page(experiment.id()));
  const Json shown = SummaryJson(experiment, "");
  ASSERT_GT(shown["trials"].size(), 30U);
  ASSERT_EQ(page["rows"].size(), shown["trials"].size());
  int num_values = 0;
  for (const Json& trial : shown["trials"]) {
    const Json& row = page["rows"]["trial-" + trial["id"].dump()];
    ASSERT_TRUE(row.is_array()) << trial["id"];
    EXPECT_EQ(row[1]["text"], trial["state"]);
    EXPECT_THAT(row[2]["text"].get<std::string>(), HasSubstr(trial["kind"].get<std::string>()));
    for (size_t i = 0; i < row.size(); ++i) {
      const Json& metric = page["header"][i]["metric"];
      if (metric.is_null()) continue;
      const bool is_measured =
          trial["metrics"].is_object() && trial["metrics"].contains(metric.get<std::string>());
      ASSERT_EQ(row[i]["value"].is_null(), !is_measured) << trial["id"] << metric;
      if (!is_measured) continue;
      const double value = trial["metrics"][metric.get<std::string>()]["value"];
      EXPECT_DOUBLE_EQ(std::stod(row[i]["value"].get<std::string>()), value);
      ++num_values;
    }
  }
  EXPECT_GT(num_values, 50);
}

TEST_F(PageTest, TheAnswerIsThatOfTheTerminal) {
  Experiment experiment = Experiment::Create(store_, WholeSpec());
  NoisyMachine().Drive(experiment);
  const Json page = Read(Page(experiment.id()));
  const std::string text = page["text"];
  const Search& search = experiment.search();
  const Verdict verdict = VerdictOf(search);
  ASSERT_TRUE(verdict.factor && verdict.factor->is_gain());
  for (const AnswerLine& line : AnswerLines(search, verdict))
    EXPECT_THAT(text, HasSubstr(line.text)) << line.name;
  for (const std::string& sentence : AnswerSentences(search, verdict, experiment.id()))
    EXPECT_THAT(text, HasSubstr(sentence));
  EXPECT_THAT(text, HasSubstr(fmt::format("{:.2f}\u00d7", verdict.factor->value)));
  EXPECT_THAT(page["pre"], Contains(ConfigToKeep(search, *verdict.pick).dump(2)));
  EXPECT_THAT(page["pre"][0].get<std::string>(),
              HasSubstr("dsat train /home/user/deepspeed.yaml --ds-config "
                        "/home/user/dsat-out/1/ds_config.json"));
  for (const char* fact : {"node-7, 64 cores", "random seed", "/home/user/deepspeed.yaml"})
    EXPECT_THAT(text, HasSubstr(fact));
}

TEST_F(PageTest, AGainThatWasNotConfirmedIsTheMostItCanBe) {
  ExperimentSpec spec = WholeSpec();
  spec.options.confirm_rounds = 0;
  Experiment experiment = Experiment::Create(store_, spec);
  NoisyMachine().Drive(experiment);
  const std::string text = Read(Page(experiment.id()))["text"];
  const double factor = VerdictOf(experiment.search()).factor->value;
  EXPECT_THAT(text, HasSubstr(fmt::format("\u2264 {:.2f}\u00d7", factor)));
  EXPECT_THAT(text, HasSubstr(fmt::format("up to {:.2f} times as fast", factor)));
}

TEST_F(PageTest, EveryPlotOfAWholeSearchIsDrawn) {
  Experiment experiment = Experiment::Create(store_, WholeSpec());
  NoisyMachine().Drive(experiment);
  const Json page = Read(Page(experiment.id()));
  for (const char* id :
       {"plot-order", "plot-confirm", "plot-batch", "plot-peak", "plot-memory", "plot-timeline"})
    EXPECT_THAT(PlotsOf(page), Contains(id));
  const std::string order = page["plots"][0]["text"];
  for (const char* name : {"best so far", "stage 1", "stage 3", "infeasible", "failed"})
    EXPECT_THAT(order, HasSubstr(name));
  for (const Json& plot : page["plots"])
    EXPECT_THAT(plot["text"].get<std::string>(), Not(HasSubstr("nothing to draw")));
}

TEST_F(PageTest, TheLossesOfAConfigurationThatFailedTheCheckAreShown) {
  Experiment experiment = Experiment::Create(store_, WholeSpec());
  NoisyMachine(/*first_soak_differs=*/true).Drive(experiment);
  const Verdict verdict = VerdictOf(experiment.search());
  ASSERT_EQ(verdict.left_out.size(), 1U);
  const Json page = Read(Page(experiment.id()));
  std::string losses;
  for (const Json& plot : page["plots"]) {
    if (plot["id"].get<std::string>().starts_with("plot-loss")) losses += plot["text"];
  }
  EXPECT_THAT(losses, HasSubstr(fmt::format("losses of trial {}", verdict.left_out[0].first)));
  EXPECT_THAT(losses, HasSubstr(fmt::format("losses of trial {}", *verdict.pick)));
  EXPECT_THAT(losses, HasSubstr("does not train like the submitted configuration"));
  EXPECT_THAT(losses, HasSubstr("runs of the submitted configuration"));
}

TEST_F(PageTest, TextOfUsersIsNeverMarkup) {
  ExperimentSpec spec = WholeSpec();
  spec.name = kHostile;
  spec.config_path = std::string("/home/") + kHostile;
  spec.entrypoint = {"builtin", kHostile};
  spec.machine[kHostile] = kHostile;
  spec.environment = {{"NAME", kHostile}};
  spec.ds_config["autotuning"][kHostile] = kHostile;
  Experiment experiment = Experiment::Create(store_, spec);
  NoisyMachine().Drive(experiment);
  const std::string page = Page(experiment.id());
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find('\x1b'), std::string::npos);
  const Json read = Read(page);
  EXPECT_THAT(read["tags"], Not(Contains("img")));
  EXPECT_THAT(read["attributes"], Not(Contains("onerror")));
  EXPECT_EQ(read["num_scripts"], 1);
  const std::string shown = "</script><img src=x onerror=alert(1)>&amp;\"' ]]> --> <!-- ";
  EXPECT_THAT(read["title"].get<std::string>(), HasSubstr(shown));
  int num_reasons = 0;
  for (const Json& row : read["rows"]) {
    for (const Json& cell : row)
      num_reasons += cell["text"].get<std::string>().find(shown) != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(num_reasons, 0);
}

TEST_F(PageTest, ASearchWithoutTrialsAndOneThatRunsHaveAPage) {
  Experiment experiment = Experiment::Create(store_, WholeSpec());
  Json page = Read(Page(experiment.id()));
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("No trial has been launched."));
  EXPECT_THAT(page["rows"], IsEmpty());
  EXPECT_THAT(page["plots"], IsEmpty());

  NoisyMachine().Drive(experiment, 1);  // The profiling trial.
  page = Read(Page(experiment.id()));
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("No trial has measured"));
  EXPECT_EQ(page["rows"].size(), 1U);

  NoisyMachine().Drive(experiment, 3);
  ASSERT_TRUE(experiment.Ask().has_value());
  page = Read(Page(experiment.id()));
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("the search has not ended"));
  EXPECT_EQ(page["rows"]["trial-" + std::to_string(page["rows"].size() - 1)][1]["text"], "running");
}

TEST_F(PageTest, AFailedSearchSaysWhy) {
  Experiment experiment = Experiment::Create(store_, WholeSpec());
  const TrialId id = experiment.Ask()->id;
  experiment.Tell(id, {TrialState::kFailed, kHostile});
  experiment.SetState(ExperimentState::kFailed, std::string("the profiling trial: ") + kHostile);
  const Json page = Read(Page(experiment.id()));
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("failed: the profiling trial: </script>"));
}

TEST_F(PageTest, APageOfManyTrialsIsBoundedAndSaysWhatIsMissing) {
  const ExperimentId id = store_.CreateExperiment(WholeSpec());
  std::vector<Event> events;
  for (TrialId trial = 0; trial < 2100; ++trial) {
    events.push_back(AskedEvent(SampleTrial(trial)));
    if (trial % 2 == 0) {
      events.push_back(AttemptStartedEvent(trial, 0, ""));
      events.push_back(MeasuredEvent(trial, 0, SamplePoint(100 + trial), std::nullopt));
      events.push_back(AttemptEndedEvent(trial, 0, {TrialState::kSucceeded, ""}, ""));
      events.push_back(ToldEvent(trial, {TrialState::kSucceeded, ""}));
    } else {
      events.push_back(ToldEvent(
          trial, {TrialState::kFailed, std::string(trial % 100 == 1 ? 100'000 : 10, 'x')}));
    }
  }
  store_.Append(id, 0, events);
  const std::string page = ReportPage(ReadReport(store_, id, nullptr));
  EXPECT_LT(page.size(), 10'000'000U);
  const Json read = Read(page);
  EXPECT_EQ(read["rows"].size(), kMostTrials);
  EXPECT_THAT(read["text"].get<std::string>(), HasSubstr("100 further trials are left out"));
  EXPECT_THAT(read["text"].get<std::string>(), HasSubstr("(96000 further bytes are left out)"));
}

}  // namespace
}  // namespace dsat::cli
