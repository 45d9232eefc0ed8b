// Tests which earlier experiment a search starts from, and that it then needs it no more.
#include "searcher/search/warm_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "methods/warm_start.h"
#include "searcher/search/verdict.h"
#include "tests/searcher/search/simulated_trials.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

ExperimentSpec SpecOn(const std::string& cpu, const std::string& model = "gpt2") {
  ExperimentSpec spec = SearchSpec("auto", 8);
  spec.hyperparameters = {{"model", {{"type", model}}}};
  spec.machine = {{"host", "a"}, {"cpu", cpu}, {"cores", 2}};
  return spec;
}

ExperimentSpec From(ExperimentSpec spec, const std::string& warm_start) {
  spec.options.auto_method.warm_start = warm_start;
  return spec;
}

// Records a search to its end; returns its number.
ExperimentId Searched(Store& store, const ExperimentSpec& spec) {
  Experiment experiment = Experiment::Create(store, spec);
  RunToEnd(experiment, 1);
  experiment.SetState(ExperimentState::kCompleted, "");
  return experiment.id();
}

// The experiment that `spec` would start from; 0: none.
ExperimentId Start(const Store& store, const ExperimentSpec& spec) {
  const Json prior = FindPrior(store, spec);
  return prior.is_null() ? 0 : prior.at("experiment").get<ExperimentId>();
}

TEST(WarmStartTest, TheNewestExperimentOfThisMachineIsFoundAndOneOfThisModelIsPreferred) {
  Store store = Store::InMemory();
  EXPECT_EQ(Start(store, From(SpecOn("x"), "auto")), 0);
  const ExperimentId other_cpu = Searched(store, SpecOn("y"));
  EXPECT_EQ(Start(store, From(SpecOn("x"), "auto")), 0);
  const ExperimentId first = Searched(store, SpecOn("x"));
  const ExperimentId second = Searched(store, SpecOn("x"));
  Searched(store, SpecOn("x", "llama"));
  const ExperimentId newest = Searched(store, SpecOn("x", "bert"));
  Experiment::Create(store, SpecOn("x"));  // Has measured nothing yet.
  EXPECT_GT(second, first);
  EXPECT_EQ(Start(store, From(SpecOn("x"), "auto")), second);
  EXPECT_EQ(Start(store, From(SpecOn("x", "opt"), "auto")), newest);
  EXPECT_EQ(Start(store, From(SpecOn("y"), "auto")), other_cpu);

  ExperimentSpec elsewhere = From(SpecOn("x"), "auto");
  elsewhere.machine["host"] = "b";                        // The same parts in another box.
  elsewhere.machine["disk"] = {{"read_bytes_per_s", 1}};  // Differs in each measurement.
  EXPECT_EQ(Start(store, elsewhere), second);
  elsewhere.slots_per_trial = 4;
  EXPECT_EQ(Start(store, elsewhere), 0);
  ExperimentSpec unknown = From(SpecOn("x"), "auto");
  unknown.machine = Json::object();
  EXPECT_EQ(Start(store, unknown), 0);
}

TEST(WarmStartTest, ANamedExperimentCountsAlsoOnAnotherMachine) {
  Store store = Store::InMemory();
  const ExperimentId id = Searched(store, SpecOn("x"));
  const std::string number = std::to_string(id);
  const auto is_same = [&](const ExperimentSpec& spec) {
    return EarlierSearchFromJson(FindPrior(store, spec)).same_machine;
  };
  EXPECT_TRUE(is_same(From(SpecOn("x"), number)));
  EXPECT_FALSE(is_same(From(SpecOn("y"), number)));
  EXPECT_TRUE(is_same(From(SpecOn("x"), "sample")));  // Its name.
}

TEST(WarmStartTest, AnExperimentThatTellsNothingIsRefused) {
  Store store = Store::InMemory();
  Experiment::Create(store, SpecOn("x"));
  EXPECT_THAT(
      RefusalOf([&] { FindPrior(store, From(SpecOn("x"), "1")); }, ErrorCode::kFailedPrecondition),
      HasSubstr("--warm-start: experiment 1 has measured no configuration"));
  EXPECT_EQ(CodeOf([&] { Experiment::Create(store, From(SpecOn("x"), "7")); }),
            ErrorCode::kNotFound);
  EXPECT_EQ(store.ListExperiments().size(), 1u);
}

TEST(WarmStartTest, AReplayNeedsNoOtherExperiment) {
  const TempFolder folder;
  const std::string path = folder / "dsat.db";
  Json verdict;
  {
    Store store = Store::Open(path, Store::Mode::kCreate);
    Searched(store, SpecOn("x"));
    EXPECT_EQ(Searched(store, From(SpecOn("x"), "auto")), 2);
    verdict = ToJson(VerdictOf(Experiment::Open(store, 2).search()));
    EXPECT_THAT(verdict["warm_start"].get<std::string>(), HasSubstr("from experiment 1"));
  }
  {
    Database db =
        Database::Open(path, Database::Access::kReadWrite, std::chrono::milliseconds(1000));
    for (const char* table : {"points", "attempts", "events", "trials"})
      db.Execute(fmt::format("DELETE FROM {} WHERE experiment = 1", table));
    db.Execute("DELETE FROM experiments WHERE id = 1");
  }
  Store store = Store::Open(path, Store::Mode::kReadWrite);
  EXPECT_EQ(store.ListExperiments().size(), 1u);
  EXPECT_EQ(ToJson(VerdictOf(Experiment::Open(store, 2).search())), verdict);
}

TEST(WarmStartTest, AnExperimentWithAGivenProfileCounts) {
  Store store = Store::InMemory();
  ExperimentSpec spec = SpecOn("x");
  spec.profile = SampleProfile();
  Searched(store, spec);
  EXPECT_EQ(Start(store, From(SpecOn("x"), "auto")), 1);
}

}  // namespace
}  // namespace dsat
