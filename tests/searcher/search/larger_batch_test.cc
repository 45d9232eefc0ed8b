// Tests what a search measures of a larger global batch than the one that it keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cli/output/output.h"
#include "searcher/search/loss_check.h"
#include "searcher/search/verdict.h"
#include "tests/searcher/search/simulated_trials.h"

namespace dsat {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// auto keeps the global batch, which is small for the machine.
ExperimentSpec KeptSpec() {
  ExperimentSpec spec = SearchSpec("auto", 20);
  spec.options.metric = "throughput";
  spec.options.max_concurrent_trials = 1;
  spec.options.confirm_rounds = 2;
  spec.options.train_batch_size = 2 * spec.slots_per_trial;
  return spec;
}

class LargerBatchTest : public ::testing::Test {
 protected:
  // Runs a search to its end on a machine on which twice the micro-batch is nearly twice as fast.
  // The larger ones of the trials at another batch than the kept one do not fit.
  Experiment Search(const ExperimentSpec& spec, int64_t most_size) {
    Experiment experiment = Experiment::Create(store_, spec);
    while (const std::optional<Trial> trial = experiment.Ask())
      End(experiment, *trial, most_size);
    return experiment;
  }
  std::vector<Trial> Larger(const Experiment& experiment) const {
    std::vector<Trial> found;
    for (const auto& [id, trial] : experiment.search().trials()) {
      if (trial.kind == TrialKind::kLarger) found.push_back(trial);
    }
    return found;
  }
  Store store_ = Store::InMemory();

 private:
  static void End(Experiment& experiment, const Trial& trial, int64_t most_size) {
    const Point point = ConfigPoint(trial);
    const auto size = static_cast<double>(point.micro_batch_size);
    const bool fits = point.micro_batch_size <= most_size;
    const Outcome outcome = fits ? Outcome{TrialState::kSucceeded, ""}
                                 : Outcome{TrialState::kInfeasible, "out of memory"};
    const int64_t attempt = experiment.StartAttempt(trial.id, "/logs");
    if (trial.kind == TrialKind::kProfile) {
      experiment.RecordMeasured(trial.id, attempt, std::nullopt, SampleProfile());
    } else if (fits) {
      PointResult result = SamplePoint(1000 * size / (20 + size), point.micro_batch_size);
      result.point = point;
      experiment.RecordMeasured(trial.id, attempt, result, std::nullopt);
    }
    experiment.EndAttempt(trial.id, attempt, outcome, "");
    const auto start = static_cast<double>(10 * trial.id);
    experiment.Tell(trial.id, outcome, {.started_s = start, .ended_s = start + 5});
  }
};

TEST_F(LargerBatchTest, TheUserIsToldWhatALargerBatchWouldBring) {
  const Experiment experiment = Search(KeptSpec(), 1000);
  const dsat::Search& search = experiment.search();
  const std::vector<Trial> larger = Larger(experiment);
  ASSERT_EQ(larger.size(), 1u);
  const Verdict verdict = VerdictOf(search);
  ASSERT_TRUE(verdict.larger_batch);
  EXPECT_EQ(larger[0].confirms, verdict.pick);
  EXPECT_EQ(verdict.larger_batch->train_batch_size, GlobalBatch(larger[0].ds_config));
  // The pick keeps the batch.
  const int64_t kept = GlobalBatch(search.BestConfigOf(*verdict.pick));
  EXPECT_EQ(kept, *KeptSpec().options.train_batch_size);
  EXPECT_GT(verdict.larger_batch->train_batch_size, kept);
  const double size = static_cast<double>(ConfigPoint(larger[0]).micro_batch_size);
  EXPECT_NEAR(verdict.larger_batch->factor, size / (20 + size) / (2.0 / 22), 0.01 * size);
  EXPECT_THAT(cli::AnswerSentences(search, verdict, experiment.id()),
              Contains(HasSubstr("at a global batch of")));
  // A replay agrees.
  const Experiment replayed = Experiment::Open(store_, experiment.id());
  EXPECT_EQ(ToJson(VerdictOf(replayed.search())), ToJson(verdict));
  EXPECT_TRUE(replayed.search().Finished());
}

TEST_F(LargerBatchTest, ASizeThatDoesNotFitIsHalvedTwiceAndCostsNoAnswer) {
  const Experiment experiment = Search(KeptSpec(), 2);
  const std::vector<Trial> larger = Larger(experiment);
  ASSERT_EQ(larger.size(), 3u);
  for (size_t i = 1; i < larger.size(); ++i) {
    EXPECT_EQ(2 * ConfigPoint(larger[i]).micro_batch_size,
              ConfigPoint(larger[i - 1]).micro_batch_size);
    EXPECT_EQ(GlobalBatch(larger[i].ds_config), GlobalBatch(larger[0].ds_config));
  }
  const Verdict verdict = VerdictOf(experiment.search());
  EXPECT_FALSE(verdict.larger_batch);
  EXPECT_EQ(verdict.certainty, Certainty::kProven);
  EXPECT_TRUE(verdict.left_out.empty());
}

TEST_F(LargerBatchTest, NothingIsMeasuredWhereTheBatchMayGrowInTheSearch) {
  ExperimentSpec spec = KeptSpec();
  spec.options.train_batch_size.reset();
  EXPECT_TRUE(Larger(Search(spec, 16)).empty());
}

}  // namespace
}  // namespace dsat
