// Tests full trainings with real processes: fake_trial replaces both binaries.
#include "searcher/full_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "searcher/search/experiment.h"
#include "searcher/search/runner_lock.h"
#include "tests/searcher/runner_fixture.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FullRunTest : public RunnerTest {};

TEST_F(FullRunTest, AFullTrainingReportsEveryStep) {
  std::vector<int64_t> steps;
  const Outcome outcome = RunFullTraining(
      Spec({}), Spec({}).ds_config, Options(),
      [&](const TrainingStep& progress) {
        steps.push_back(progress.step);
        EXPECT_EQ(progress.loss, 1.0 / static_cast<double>(progress.step));
        EXPECT_EQ(progress.latency_ms, 5);
        EXPECT_FALSE(progress.validated);
      },
      nullptr);
  EXPECT_EQ(outcome.state, TrialState::kSucceeded) << outcome.reason;
  std::vector<int64_t> expected(20);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(steps, expected);
}

TEST_F(FullRunTest, AFullTrainingThatLosesARankIsStartedAgain) {
  ExperimentSpec spec = Spec({{"0", {"crash", "ok"}}});
  std::vector<int64_t> steps;
  const Outcome outcome = RunFullTraining(
      spec, spec.ds_config, Options(),
      [&](const TrainingStep& progress) { steps.push_back(progress.step); }, nullptr);
  EXPECT_EQ(outcome.state, TrialState::kSucceeded) << outcome.reason;
  std::vector<int64_t> expected(20);
  std::iota(expected.begin(), expected.end(), 1);
  expected.insert(expected.begin(), 1);  // A step that was trained again is told again.
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(NumLaunches(), 2);
}

TEST_F(FullRunTest, ATrainingStopsIfTheDiskStaysFullAndSaysSo) {
  int64_t saves = 0;
  const auto run = [&](const std::vector<std::string>& behaviors, int64_t max_restarts,
                       bool checkpoints = false) {
    ExperimentSpec spec = Spec({{"0", behaviors}});
    spec.max_restarts = max_restarts;
    RunnerOptions options = Options();
    options.out_dir += fmt::format("{}-{}", behaviors.size(), max_restarts + checkpoints);
    fs::create_directories(options.out_dir + "/checkpoint");
    const int64_t before = NumLaunches();
    const Outcome outcome = RunFullTraining(
        spec, spec.ds_config, options, [](const TrainingStep&) {},
        [&]() -> int64_t {
          if (checkpoints)
            WriteFileAtomic(options.out_dir + "/checkpoint/latest", fmt::format("{}", ++saves));
          return 0;
        });
    return std::pair(outcome, NumLaunches() - before);
  };
  EXPECT_EQ(run({"full disk", "ok"}, 5).first.state, TrialState::kSucceeded);
  EXPECT_EQ(run({"full disk", "crash", "full disk", "ok"}, 5).first.state, TrialState::kSucceeded);
  const auto [stays_full, launches] = run({"full disk", "full disk", "full disk", "ok"}, 5);
  EXPECT_NE(stays_full.state, TrialState::kSucceeded);
  EXPECT_EQ(launches, 3);
  EXPECT_THAT(stays_full.reason, HasSubstr("cannot write a checkpoint: No space left on device; "));
  EXPECT_THAT(stays_full.reason, HasSubstr("free space there, then run the same command again"));
  EXPECT_EQ(run({"full disk", "full disk", "ok"}, 5).first.state, TrialState::kSucceeded);
  EXPECT_EQ(run({"full disk", "full disk", "full disk", "ok"}, 5, true).first.state,
            TrialState::kSucceeded);
  EXPECT_EQ(run({"full disk", "ok"}, 0).second, 1);
  EXPECT_THAT(stays_full.reason, testing::EndsWith("run the same command again"));
  // It is not the disk of the logs and checkpoints.
  const auto [other_full, other_launches] = run({"full nvme_path", "ok", "ok", "ok", "ok"}, 5);
  EXPECT_EQ(other_full.state, TrialState::kInfeasible);
  EXPECT_EQ(other_launches, 1);
  EXPECT_THAT(other_full.reason, testing::EndsWith("No space left on device"));
}

TEST_F(FullRunTest, AFolderHasOneTrainingAndOneExperiment) {
  const RunnerOptions options = Options();
  fs::create_directories(options.out_dir);
  const auto train = [&] {
    RunFullTraining(
        Spec({}), Spec({}).ds_config, options, [](const TrainingStep&) {}, nullptr);
  };
  {
    const RunnerLock lock = RunnerLock::LockFolder(options.out_dir);
    EXPECT_THROW(train(), Error);
  }
  Experiment mine = Experiment::Create(store_, Spec({}));
  EXPECT_EQ(Runner(mine, options, nullptr).Run(), ExperimentState::kCompleted);
  const std::string metrics = ReadFile(Path("out/metrics.json"));
  Store others = Store::Open(Path("other.db"), Store::Mode::kCreate);
  Experiment other = Experiment::Create(others, Spec({}));
  EXPECT_THROW(Runner(other, options, nullptr).Run(), Error);
  EXPECT_TRUE(others.Events(other.id()).empty());
  EXPECT_EQ(ReadFile(Path("out/metrics.json")), metrics);
}

TEST_F(FullRunTest, AFullTrainingEndsAsItsProcessesDo) {
  // `num_cancels`: how often the end is asked for after the first step.
  const auto run = [&](const std::string& behavior, int64_t num_cancels) {
    int64_t cancels = 0;
    ExperimentSpec spec = Spec({{"0", {behavior}}});
    spec.max_length_steps = 1'000'000;
    return RunFullTraining(
        spec, spec.ds_config, Options(), [&](const TrainingStep&) { cancels = num_cancels; },
        [&] { return cancels; });
  };
  const Outcome crashed = run("crash", 0);
  EXPECT_EQ(crashed.state, TrialState::kFailed);
  EXPECT_THAT(crashed.reason, HasSubstr("the fake crashes as told"));
  const Outcome infeasible = run("infeasible", 0);
  EXPECT_EQ(infeasible.state, TrialState::kInfeasible);
  EXPECT_THAT(infeasible.reason, HasSubstr("needs 3 GiB of 2 GiB"));
  EXPECT_EQ(run("ok", 1).state, TrialState::kStopped);       // It ends when it is told to.
  EXPECT_EQ(run("endless", 2).state, TrialState::kStopped);  // It does not listen.
  ExpectNothingRuns();
}

}  // namespace
}  // namespace dsat
