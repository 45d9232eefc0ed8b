// Tests the lines of the answer that tables and pages do not show.
#include "cli/output/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/files.h"
#include "tests/searcher/search/simulated_trials.h"

namespace dsat::cli {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

// The lines by name of a search in which only the submitted configuration runs.
std::map<std::string, std::string> LinesWhereOthersAre(const Outcome& others) {
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
  std::map<std::string, std::string> lines;
  for (const AnswerLine& line : AnswerLines(experiment.search(), VerdictOf(experiment.search())))
    lines[line.name] = line.text;
  return lines;
}

TEST(AnswerTest, WhereAllOthersFailTheReasonIsNamedAndNothingIsCertain) {
  const auto lines = LinesWhereOthersAre({TrialState::kFailed, "the script has its own batches"});
  EXPECT_THAT(lines, Contains(Pair("best", HasSubstr("this is the submitted configuration"))));
  EXPECT_THAT(lines,
              Contains(Pair("factor", HasSubstr("no other configuration could be measured"))));
  EXPECT_THAT(lines, Contains(Pair("factor", HasSubstr("failed: the script has its own batches"))));
  EXPECT_THAT(lines, Not(Contains(Key("certainty"))));
}

TEST(AnswerTest, WhatDoesNotFitIsNoAnswer) {
  const auto lines = LinesWhereOthersAre({TrialState::kInfeasible, "out of memory"});
  EXPECT_THAT(lines, Contains(Pair("factor", HasSubstr("was measured to be faster"))));
  EXPECT_THAT(lines, Contains(Pair("certainty", HasSubstr("no other configuration is expected"))));
}

TEST(AnswerTest, TheDocsNameEachFieldOfTheVerdict) {
  const std::string docs = ReadFile(DSAT_SOURCE_DIR "/docs/proof.md");
  const Json verdict = ToJson(Verdict{});
  for (const auto& [field, value] : verdict.items())
    EXPECT_THAT(docs, ContainsRegex("\n\\| [^|]*`" + field + "`[^|]*\\|"));
}

}  // namespace
}  // namespace dsat::cli
