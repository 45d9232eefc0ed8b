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

// Twice the micro-batch is nearly twice as fast, up to the largest one that fits.
struct SteepMachine : SimulatedMachine {
  explicit SteepMachine(int64_t most) : most_size(most) {}
  Outcome End(const Trial& trial) const override {
    return ConfigPoint(trial).micro_batch_size <= most_size
               ? Outcome{TrialState::kSucceeded, ""}
               : Outcome{TrialState::kInfeasible, "out of memory"};
  }
  double Speed(const Point& point) const override {
    const auto size = static_cast<double>(point.micro_batch_size);
    return 1000 * size / (20 + size);
  }
  int64_t most_size;
};

class LargerBatchTest : public ::testing::Test {
 protected:
  Experiment Search(const ExperimentSpec& spec, int64_t most_size) {
    Experiment experiment = Experiment::Create(store_, spec);
    SteepMachine(most_size).Drive(experiment);
    return experiment;
  }
  std::vector<Trial> Larger(const Experiment& experiment) const {
    return TrialsOf(experiment.search(), TrialKind::kLarger);
  }
  Store store_ = Store::InMemory();
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
