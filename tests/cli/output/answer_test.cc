// Tests the lines of the answer that tables and pages do not show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "cli/output/output.h"
#include "tests/searcher/search/simulated_trials.h"

namespace dsat::cli {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

// The texts for a search in which only the submitted configuration runs.
struct Said {
  std::string summary;
  std::map<std::string, std::string> lines;  // By name.
};
Said WhereOthersAre(const Outcome& others) {
  Store store = Store::InMemory();
  ExperimentSpec spec = SearchSpec("auto", 8);
  spec.ds_config["zero_optimization"]["stage"] = 1;
  Experiment experiment = Experiment::Create(store, spec);
  while (const std::optional<Trial> trial = experiment.Ask()) {
    const bool is_other = trial->kind == TrialKind::kSearch;
    const Simulated result = Simulate(*trial);
    experiment.TellExternal(trial->id, is_other ? others : result.outcome,
                            is_other ? std::vector<PointResult>() : result.points, result.profile);
  }
  const Verdict verdict = VerdictOf(experiment.search());
  Said said{.summary = ShortAnswer(experiment.search(), verdict, 1), .lines = {}};
  for (const AnswerLine& line : AnswerLines(experiment.search(), verdict))
    said.lines[line.name] = line.text;
  return said;
}

TEST(AnswerTest, WhereAllOthersFailTheReasonIsNamedAndNothingIsCertain) {
  const auto [summary, lines] =
      WhereOthersAre({TrialState::kFailed, "the script has its own batches"});
  EXPECT_THAT(summary, HasSubstr("keep the submitted configuration: no other configuration could"));
  EXPECT_THAT(summary, HasSubstr("failed: the script has its own"));
  EXPECT_THAT(lines, Contains(Pair("best", HasSubstr("trial 1, "))));
  EXPECT_THAT(lines, Not(Contains(Key("certainty"))));
}

TEST(AnswerTest, WhatDoesNotFitIsNoAnswer) {
  const auto [summary, lines] = WhereOthersAre({TrialState::kInfeasible, "out of memory"});
  EXPECT_THAT(summary, HasSubstr("no other configuration was measured\n"));
  EXPECT_THAT(lines, Contains(Pair("certainty", HasSubstr("no other configuration is expected"))));
}

// A search whose finalists are measured again with these speeds, in turn; 100 is as submitted.
class Confirmed {
 public:
  explicit Confirmed(const std::vector<double>& speeds, int64_t rounds = 9) {
    ExperimentSpec spec = SearchSpec("random", 6);
    spec.options.metric = "throughput";
    spec.options.confirm_rounds = rounds;
    experiment_.emplace(Experiment::Create(store_, spec));
    std::map<TrialId, size_t> launches;
    double clock_s = 0;
    while (const std::optional<Trial> trial = experiment_->Ask()) {
      const bool profiles = trial->kind == TrialKind::kProfile;
      const bool is_base = trial->kind == TrialKind::kSubmitted ||
                           trial->confirms == experiment_->search().Submitted();
      const int64_t attempt = experiment_->StartAttempt(trial->id, "/logs");
      PointResult point = SamplePoint(100, 1);
      point.point = ConfigPoint(*trial);
      if (!is_base) {
        const size_t round = trial->confirms ? launches[*trial->confirms]++ : 0;
        point.measurement["throughput"].value = speeds[round % speeds.size()];
      }
      experiment_->RecordMeasured(trial->id, attempt,
                                  profiles ? std::nullopt : std::optional(point),
                                  profiles ? std::optional(SampleProfile()) : std::nullopt);
      experiment_->EndAttempt(trial->id, attempt, {TrialState::kSucceeded, ""}, "");
      const double start_s = std::exchange(clock_s, clock_s + 2);
      experiment_->Tell(trial->id, {TrialState::kSucceeded, ""}, {start_s, clock_s, 0.4});
    }
  }

  std::string Summary() const {
    const Search& search = experiment_->search();
    return ShortAnswer(search, VerdictOf(search), 1,
                       {"sh dsat-out/1/command.txt", "dsat check dsat-out/1/ds_config.json",
                        "report: dsat-out/1/report.html"});
  }

 private:
  Store store_ = Store::InMemory();
  std::optional<Experiment> experiment_;
};

TEST(AnswerTest, TheClassesOfAnAnswerDoNotContradictThemselves) {
  const std::string proven = Confirmed({150, 151}).Summary();
  EXPECT_THAT(proven, ContainsRegex("^1\\.50 times as fast as submitted \\(1\\.[0-9]+ to "
                                    "1\\.[0-9]+\\), proven in 2 rounds\n"));
  EXPECT_THAT(proven, HasSubstr("\n  the machine was busy (40 %); the interval is "));
  EXPECT_THAT(proven, Not(HasSubstr("probability")));

  const std::string probable = Confirmed({95, 180, 110, 150}).Summary();
  EXPECT_THAT(probable, ContainsRegex("^1\\.[0-9]+ times as fast as submitted \\(0\\.[0-9]+ to "
                                      "[0-9.]+\\),\\s+faster with\\s+probability 9[0-9] %"));
  EXPECT_THAT(
      probable,
      HasSubstr("\n  the machine was busy (40 %); dsat resume 1 --confirm 18 would settle it\n"));
  EXPECT_THAT(probable, Not(HasSubstr("proven")));

  const std::string none = Confirmed({97, 104}).Summary();
  EXPECT_THAT(none, StartsWith("keep the submitted configuration: no gain worth having was found\n"
                               "  the best other one is "));
  EXPECT_THAT(none, Not(ContainsRegex("proven|probable")));
  EXPECT_THAT(Confirmed({90, 130}).Summary(),
              StartsWith("keep the submitted configuration: no gain is certain enough\n"));
}

TEST(AnswerTest, WhatWasNotConfirmedSaysUpTo) {
  EXPECT_THAT(Confirmed({180}, 0).Summary(),
              StartsWith("up to 1.80 times as fast as submitted, not confirmed\n"));
  EXPECT_THAT(Confirmed({101}, 0).Summary(),
              StartsWith("keep the submitted configuration: no gain worth having was found\n"
                         "  the best other one was measured up to 1.01 times as fast, which is "
                         "within"));
}

TEST(AnswerTest, TheSummaryHasNineLinesOf80ColumnsAtMost) {
  for (const std::string& text :
       {Confirmed({150, 151}).Summary(), Confirmed({95, 180, 110, 150}).Summary(),
        Confirmed({97, 104}).Summary(), Confirmed({180}, 0).Summary()}) {
    EXPECT_LE(std::ranges::count(text, '\n'), 9) << text;
    EXPECT_THAT(text, EndsWith("\nnext: sh dsat-out/1/command.txt   dsat check "
                               "dsat-out/1/ds_config.json\n      report: "
                               "dsat-out/1/report.html\n"));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), 80U) << line;
  }
}

TEST(AnswerTest, TheDocsNameEachFieldOfTheVerdict) {
  const std::string docs = ReadFile(DSAT_SOURCE_DIR "/docs/proof.md");
  const Json verdict = ToJson(Verdict{});
  for (const auto& [field, value] : verdict.items())
    EXPECT_THAT(docs, ContainsRegex("\n\\| [^|]*`" + field + "`[^|]*\\|"));
}

}  // namespace
}  // namespace dsat::cli
