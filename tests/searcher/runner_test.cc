// Tests the runner with real processes: fake_trial replaces both binaries and follows a script.
#include "searcher/runner.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "db/store.h"
#include "searcher/search/experiment.h"
#include "searcher/search/runner_lock.h"
#include "tests/base/error_code.h"
#include "tests/searcher/runner_fixture.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using Kind = RunnerEvent::Kind;

// Keeps every event, and the most attempts that ran at once.
struct Watcher {
  std::vector<RunnerEvent> events;
  int64_t running = 0, most_running = 0;

  RunnerWatcher Function() {
    return [this](const Experiment&, const RunnerEvent& event) {
      events.push_back(event);
      if (event.kind == Kind::kTrialStarted) most_running = std::max(most_running, ++running);
      if (event.kind == Kind::kTrialEnded) --running;
    };
  }
  int64_t Count(Kind kind) const {
    return std::count_if(events.begin(), events.end(),
                         [kind](const RunnerEvent& event) { return event.kind == kind; });
  }
  int64_t CountNotes(const std::string& start) const {
    return std::count_if(events.begin(), events.end(), [&](const RunnerEvent& event) {
      return event.kind == Kind::kNote && event.text.starts_with(start);
    });
  }
};

std::string EndOf(const Experiment& experiment, TrialId id) {
  const Trial& trial = experiment.search().trials().at(id);
  return ToString(trial.state) + ": " + trial.reason;
}

// The part of an experiment that interruptions of the search must not change.
std::vector<std::string> Rows(const Experiment& experiment) {
  std::vector<std::string> rows;
  for (const auto& [id, trial] : experiment.search().trials()) {
    rows.push_back(fmt::format("{} {} {} {} {}", id, ToString(trial.kind), ToString(trial.state),
                               Json(trial.assignment).dump(),
                               MetricValue(trial, "throughput").value_or(-1)));
  }
  return rows;
}

TEST_F(RunnerTest, ASearchRunsToItsEndAndLeavesItsResults) {
  Experiment experiment = Experiment::Create(store_, Spec({}));
  Watcher watcher;
  Runner runner(experiment, Options(), watcher.Function());
  EXPECT_EQ(runner.Run(), ExperimentState::kCompleted);
  ASSERT_EQ(experiment.search().trials().size(), 5u);
  for (TrialId id = 0; id < 5; ++id) {
    EXPECT_EQ(EndOf(experiment, id), "succeeded: ");
    EXPECT_EQ(experiment.NumAttempts(id), 1);
    EXPECT_TRUE(fs::exists(Path(fmt::format("out/trials/{}/attempt0/rank0.log", id))));
  }
  EXPECT_EQ(store_.GetExperiment(experiment.id()).state, ExperimentState::kCompleted);
  EXPECT_TRUE(experiment.search().profile().has_value());
  const Json best = ReadJsonFile(Path("out/ds_config.json"));
  const TrialId best_trial = experiment.search().Best().value();
  EXPECT_EQ(best.at("train_micro_batch_size_per_gpu"),
            experiment.search().trials().at(best_trial).points.at(0).point.micro_batch_size);
  EXPECT_EQ(ReadJsonFile(Path("out/metrics.json")).at("best_trial").at("trial"), best_trial);
  EXPECT_EQ(watcher.Count(Kind::kTrialStarted), 5);
  EXPECT_EQ(watcher.Count(Kind::kTrialEnded), 5);
  EXPECT_EQ(watcher.Count(Kind::kProfiled), 1);
  EXPECT_GE(watcher.Count(Kind::kTrialProgress), 5);
  ExpectNothingRuns();
}

TEST_F(RunnerTest, EveryEndOfAProcessHasItsOutcome) {
  ExperimentSpec spec = Spec({{"1", {"infeasible"}},
                              {"2", {"crash"}},
                              {"3", {"crash", "ok"}},
                              {"4", {"silent"}},
                              {"5", {"crash after"}},
                              {"6", {"infeasible by exit"}},
                              {"7", {"segv", "ok"}}});
  spec.options.max_trials = 8;
  Experiment experiment = Experiment::Create(store_, spec);
  RunnerOptions options = Options();
  options.num_slots = 2;
  EXPECT_EQ(Runner(experiment, options, nullptr).Run(), ExperimentState::kCompleted);
  EXPECT_THAT(EndOf(experiment, 1), HasSubstr("infeasible: "));
  EXPECT_THAT(EndOf(experiment, 1), HasSubstr("needs 3 GiB of 2 GiB"));
  EXPECT_THAT(EndOf(experiment, 2), HasSubstr("failed: "));
  EXPECT_THAT(EndOf(experiment, 2), HasSubstr("the fake crashes as told"));
  EXPECT_EQ(EndOf(experiment, 3), "succeeded: ");
  EXPECT_THAT(EndOf(experiment, 4), HasSubstr("failed: "));
  EXPECT_THAT(EndOf(experiment, 4), HasSubstr("without a measurement"));
  EXPECT_EQ(EndOf(experiment, 5), "succeeded: ");
  EXPECT_THAT(EndOf(experiment, 6), HasSubstr("infeasible: "));
  EXPECT_EQ(EndOf(experiment, 7), "succeeded: ");
  const std::vector<int64_t> attempts = {1, 1, 2, 2, 2, 1, 1, 2};
  for (TrialId id = 0; id < 8; ++id)
    EXPECT_EQ(experiment.NumAttempts(id), attempts.at(id)) << id;
  const Experiment::Attempt first = experiment.Attempts(7).at(0);
  EXPECT_EQ(first.end->state, TrialState::kFailed);
  EXPECT_THAT(first.end->reason, HasSubstr("signal 11"));
  const QueryResult tails = store_.Query("SELECT log_tail FROM attempts WHERE trial = 2");
  EXPECT_THAT(tails.rows.at(0).at(0).get<std::string>(), HasSubstr("the fake crashes as told"));
}

// The profile and the submitted configuration, trials 0 and 1, are tried three times at least.
TEST_F(RunnerTest, AMomentWithoutHostMemoryIsNoEvidence) {
  ExperimentSpec spec = Spec({{"0", {"no memory", "no memory", "ok"}},
                              {"1", {"no memory", "no memory", "ok"}},
                              {"2", {"no memory"}}});
  spec.max_restarts = 0;
  Experiment experiment = Experiment::Create(store_, spec);
  Watcher watcher;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Runner(experiment, Options(), watcher.Function()).Run(), ExperimentState::kCompleted);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2 * (1 + 2)));
  EXPECT_EQ(EndOf(experiment, 0), "succeeded: ");
  EXPECT_EQ(EndOf(experiment, 1), "succeeded: ");
  EXPECT_EQ(experiment.search().trials().at(1).kind, TrialKind::kSubmitted);
  EXPECT_THAT(EndOf(experiment, 2), HasSubstr("failed: "));
  EXPECT_THAT(EndOf(experiment, 2), HasSubstr("host memory: the system has no 950.0 KiB"));
  EXPECT_EQ(experiment.NumAttempts(0), 3);
  EXPECT_EQ(experiment.NumAttempts(1), 3);
  EXPECT_EQ(experiment.NumAttempts(2), 1);
}

TEST_F(RunnerTest, AFullDiskDuringTheSoakLosesNoAnswer) {
  ExperimentSpec spec = Spec({{"5", {"crash by full disk"}}});
  spec.options.soak_steps = 3;
  Experiment experiment = Experiment::Create(store_, spec);
  EXPECT_EQ(Runner(experiment, Options(), nullptr).Run(), ExperimentState::kCompleted);
  ASSERT_EQ(experiment.search().trials().size(), 6u);
  EXPECT_EQ(experiment.search().trials().at(5).kind, TrialKind::kSoak);
  EXPECT_THAT(EndOf(experiment, 5), HasSubstr("failed: rank 0 exited with code 1: "));
  EXPECT_THAT(EndOf(experiment, 5), HasSubstr("No space left on device"));
  const TrialId best = experiment.search().Best().value();
  EXPECT_EQ(ReadJsonFile(Path("out/metrics.json")).at("best_trial").at("trial"), best);
  EXPECT_EQ(store_.BestTrials().at(experiment.id()).trial, best);
}

TEST_F(RunnerTest, AScriptWhoseExtensionDoesNotCompileIsStartedOnce) {
  std::ofstream(Path("script.sh"))
      << "echo \"RuntimeError: Error building extension 'x': [1/2] c++ -c x.cpp\"\n"
         "echo 'pytypes.h:12:10: fatal error: Python.h: No such file or directory'\n"
         "exit 1\n";
  ExperimentSpec spec = Spec({});
  spec.entrypoint = {"sh", "script.sh"};
  spec.device_memory_bytes = int64_t{1} << 30;
  Experiment experiment = Experiment::Create(store_, spec);
  EXPECT_EQ(Runner(experiment, Options(), nullptr).Run(), ExperimentState::kFailed);
  EXPECT_EQ(experiment.NumAttempts(0), 1);
  EXPECT_THAT(EndOf(experiment, 0), HasSubstr("fatal error: Python.h"));
  EXPECT_THAT(EndOf(experiment, 0), HasSubstr("install Python.h (python3-dev"));
}

// A trial that does not end by itself, the limit that ends it, and what is then said.
struct Stuck {
  std::string behavior;
  std::chrono::seconds RunnerOptions::*limit;
  std::string reason;
};
class StuckTrialTest : public RunnerTest, public testing::WithParamInterface<Stuck> {};

INSTANTIATE_TEST_SUITE_P(
    , StuckTrialTest,
    testing::Values(Stuck{"mute", &RunnerOptions::start_timeout, "no report for 1 s"},
                    Stuck{"hang", &RunnerOptions::hang_timeout, "no progress for 1 s"},
                    Stuck{"endless", &RunnerOptions::trial_timeout, "still running after 1 s"}),
    [](const auto& stuck) { return stuck.param.behavior; });

TEST_P(StuckTrialTest, IsKilledAndTheReasonSaysWhy) {
  ExperimentSpec spec = Spec({{"0", {GetParam().behavior}}});
  spec.max_restarts = 0;
  Experiment experiment = Experiment::Create(store_, spec);
  RunnerOptions options = Options();
  options.*GetParam().limit = std::chrono::seconds(1);
  EXPECT_EQ(Runner(experiment, options, nullptr).Run(), ExperimentState::kFailed);
  EXPECT_THAT(EndOf(experiment, 0), HasSubstr("failed: " + GetParam().reason));
  EXPECT_THAT(store_.GetExperiment(experiment.id()).reason, HasSubstr(GetParam().reason));
  if (GetParam().behavior == "hang") {
    EXPECT_THAT(EndOf(experiment, 0), HasSubstr("the last step was 1"));
  }
  ExpectNothingRuns();
}

// Its result counts. One that a frozen supervisor holds is the same.
TEST_F(RunnerTest, ATrialThatDoesNotEndAfterItsResultIsKilled) {
  ExperimentSpec spec = Spec({{"0", {"linger"}}});
  Experiment experiment = Experiment::Create(store_, spec);
  RunnerOptions options = Options();
  options.hang_timeout = std::chrono::seconds(3);
  EXPECT_EQ(Runner(experiment, options, nullptr).Run(), ExperimentState::kCompleted);
  EXPECT_EQ(2 * NumLaunches(), std::ssize(Journal()) + 1);  // It has not noted its end.
  ExpectNothingRuns();
}

TEST_F(RunnerTest, AProfilingTrialWithoutAProfileHasFailed) {
  ExperimentSpec spec = Spec({{"0", {"no profile"}}});
  spec.max_restarts = 0;
  Experiment experiment = Experiment::Create(store_, spec);
  EXPECT_EQ(Runner(experiment, Options(), nullptr).Run(), ExperimentState::kFailed);
  EXPECT_THAT(EndOf(experiment, 0), HasSubstr("failed: "));
  EXPECT_EQ(experiment.search().trials().size(), 1u);
}

TEST_F(RunnerTest, AConfigThatTheEngineCannotRunIsNotLaunched) {
  ExperimentSpec spec = Spec({});
  spec.ds_config["sparse_gradients"] = true;
  Experiment experiment = Experiment::Create(store_, spec);
  EXPECT_EQ(Runner(experiment, Options(), nullptr).Run(), ExperimentState::kFailed);
  EXPECT_THAT(EndOf(experiment, 0), HasSubstr("infeasible: "));
  EXPECT_THAT(EndOf(experiment, 0), HasSubstr("sparse_gradients"));
  EXPECT_EQ(experiment.NumAttempts(0), 0);
  EXPECT_EQ(NumLaunches(), 0);
}

TEST_F(RunnerTest, SlotsAreNeverExceeded) {
  for (const auto& [num_slots, slots_per_trial, most] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{3, 1, 3}, {3, 2, 1}, {1, 2, 1}}) {
    fs::remove(Path("journal"));
    Store store = Store::InMemory();
    ExperimentSpec spec = Spec({});
    spec.slots_per_trial = slots_per_trial;
    Experiment experiment = Experiment::Create(store, spec);
    RunnerOptions options = Options();
    options.num_slots = num_slots;
    Watcher watcher;
    EXPECT_EQ(Runner(experiment, options, watcher.Function()).Run(), ExperimentState::kCompleted);
    EXPECT_EQ(watcher.most_running, most);
    EXPECT_EQ(watcher.CountNotes("a trial needs"), slots_per_trial > num_slots ? 1 : 0);
    int64_t running = 0;
    for (const std::string& line : Journal()) {
      running += line.starts_with('+') ? 1 : -1;
      EXPECT_LE(running, most);
    }
  }
}

TEST_F(RunnerTest, CancelLeavesNothingRunningAndTheSearchGoesOnLater) {
  Experiment experiment = Experiment::Create(store_, Spec({{"2", {"endless", "ok"}}}));
  Runner* running = nullptr;
  Runner runner(experiment, Options(), [&](const Experiment&, const RunnerEvent& event) {
    if (event.kind == Kind::kTrialProgress && event.trial == 2) running->Cancel();
  });
  running = &runner;
  EXPECT_EQ(runner.Run(), ExperimentState::kActive);
  ExpectNothingRuns();
  EXPECT_EQ(experiment.search().Running(), std::vector<TrialId>{2});
  EXPECT_EQ(experiment.Attempts(2).at(0).end->state, TrialState::kStopped);
  EXPECT_TRUE(fs::exists(Path("out/ds_config.json")));  // The best so far.

  Experiment again = Experiment::Open(store_, experiment.id());
  EXPECT_EQ(Runner(again, Options(), nullptr).Run(), ExperimentState::kCompleted);
  EXPECT_EQ(again.search().trials().size(), 5u);
  EXPECT_EQ(again.NumAttempts(2), 2);
  EXPECT_EQ(EndOf(again, 2), "succeeded: ");
}

TEST_F(RunnerTest, CancelBeforeRunLaunchesNothing) {
  Experiment experiment = Experiment::Create(store_, Spec({}));
  Runner runner(experiment, Options(), nullptr);
  runner.Cancel();
  EXPECT_EQ(runner.Run(), ExperimentState::kActive);
  EXPECT_TRUE(experiment.search().trials().empty());
}

TEST_F(RunnerTest, ASearchThatHasEndedStaysAsItIs) {
  Experiment experiment = Experiment::Create(store_, Spec({}));
  ASSERT_EQ(Runner(experiment, Options(), nullptr).Run(), ExperimentState::kCompleted);
  const size_t num_events = store_.Events(experiment.id()).size();
  fs::remove_all(Path("out"));
  EXPECT_EQ(Runner(experiment, Options(), nullptr).Run(), ExperimentState::kCompleted);
  EXPECT_EQ(store_.Events(experiment.id()).size(), num_events);
  EXPECT_TRUE(fs::exists(Path("out/ds_config.json")));
}

// Runs the experiment in a process of its own and kills it once `launches` trials were launched.
class RunnerKillTest : public RunnerTest {
 protected:
  void RunAndKill(ExperimentId id, int64_t launches) {
    std::vector<std::string> arguments = {kFake,       "run", Path("dsat.db"), std::to_string(id),
                                          Path("out"), "1"};
    std::vector<char*> argv;
    for (std::string& argument : arguments)
      argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    ASSERT_EQ(posix_spawn(&pid, kFake.c_str(), nullptr, nullptr, argv.data(), environ), 0);
    while (NumLaunches() < launches && kill(pid, 0) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the runner ended before it was killed";
  }
};

TEST_F(RunnerKillTest, AKilledRunnerIsResumedToTheSameTrials) {
  ExperimentSpec spec = Spec({{"3", {"infeasible"}}});
  spec.options.max_trials = 7;
  Store memory = Store::InMemory();
  Experiment reference = Experiment::Create(memory, spec);
  ASSERT_EQ(Runner(reference, Options(), nullptr).Run(), ExperimentState::kCompleted);
  fs::remove_all(Path("out"));
  fs::remove(Path("journal"));

  // The launches after which the runner is killed, those of earlier runs included, do not end.
  ExperimentSpec endless =
      Spec({{"0", {"endless", "ok"}}, {"1", {"endless", "ok"}}, {"3", {"endless", "infeasible"}}});
  endless.options.max_trials = 7;
  const ExperimentId id = Experiment::Create(store_, endless).id();
  const std::vector<int64_t> kill_after = {1, 3, 6};
  for (const int64_t launches : kill_after)
    RunAndKill(id, launches);
  Experiment resumed = Experiment::Open(store_, id);
  EXPECT_EQ(Runner(resumed, Options(), nullptr).Run(), ExperimentState::kCompleted);
  EXPECT_EQ(Rows(resumed), Rows(reference));
  // No ended trial runs again: each kill causes one more launch.
  EXPECT_EQ(NumLaunches(), static_cast<int64_t>(7 + kill_after.size()));
  ExpectNothingRuns();
}

TEST_F(RunnerTest, WhatADeadRunnerHadRecordedIsNotRunAgain) {
  Experiment experiment = Experiment::Create(store_, Spec({}));
  RunnerOptions options = Options();
  // Trial 0: measured, its attempt never ended.
  ASSERT_EQ(experiment.Ask()->id, 0);
  experiment.StartAttempt(0, "gone");
  const ModelProfile profile{1000000, 1000000, 1 << 20, int64_t{1} << 28, 1000000};
  experiment.RecordMeasured(0, 0, PointResult{{1, 1}, {{"throughput", {5, 0, 1}}}}, profile);
  {
    Runner settling(experiment, options, nullptr);
    settling.Cancel();  // Settles what is old, and launches nothing.
    EXPECT_EQ(settling.Run(), ExperimentState::kActive);
  }
  EXPECT_EQ(EndOf(experiment, 0), "succeeded: ");
  // Trial 1: failed for the last time, not told. Trial 2: infeasible, not told. Trial 3: cut off.
  for (TrialId id = 1; id <= 3; ++id)
    ASSERT_EQ(experiment.Ask()->id, id);
  for (int64_t attempt = 0; attempt < 3; ++attempt) {
    experiment.StartAttempt(1, "gone");
    const std::string reason = attempt < 2 ? "hung" : "crashed";
    experiment.EndAttempt(1, attempt, {TrialState::kFailed, reason}, "");
  }
  experiment.StartAttempt(2, "gone");
  experiment.EndAttempt(2, 0, {TrialState::kInfeasible, "too big"}, "");
  experiment.StartAttempt(3, "gone");
  EXPECT_EQ(Runner(experiment, options, nullptr).Run(), ExperimentState::kCompleted);
  EXPECT_EQ(EndOf(experiment, 1), "failed: crashed");
  EXPECT_EQ(EndOf(experiment, 2), "infeasible: too big");
  EXPECT_EQ(EndOf(experiment, 3), "succeeded: ");
  EXPECT_EQ(experiment.NumAttempts(3), 2);
  EXPECT_EQ(experiment.Attempts(3).at(0).end->state, TrialState::kStopped);
  EXPECT_EQ(NumLaunches(), 2);  // Trials 3 and 4.
}

TEST_F(RunnerTest, ASecondRunnerIsRefused) {
  Experiment experiment = Experiment::Create(store_, Spec({}));
  const RunnerLock lock = RunnerLock::Acquire(store_.path(), experiment.id());
  const Error error = ErrorOf([&] { Runner(experiment, Options(), nullptr); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(store_.Events(experiment.id()).empty());
}

TEST_F(RunnerTest, AnOutFolderThatCannotBeWrittenIsAnErrorBeforeAnythingHappens) {
  Experiment experiment = Experiment::Create(store_, Spec({}));
  RunnerOptions options = Options();
  WriteFileAtomic(Path("file"), "no folder");
  options.out_dir = Path("file") + "/out";
  EXPECT_THROW(Runner(experiment, options, nullptr).Run(), Error);
  EXPECT_TRUE(store_.Events(experiment.id()).empty());
  EXPECT_EQ(NumLaunches(), 0);
}

TEST_F(RunnerTest, AnErrorOnTheWayStopsTheTrialsAndSaysHowToGoOn) {
  Experiment experiment = Experiment::Create(store_, Spec({{"3", {"endless", "ok"}}}));
  RunnerOptions options = Options();
  options.num_slots = 2;
  const std::string trials = Path("out/trials");
  Runner runner(experiment, options, [&](const Experiment&, const RunnerEvent& event) {
    if (event.kind != Kind::kTrialStarted || event.trial != 3) return;
    fs::rename(trials, Path("moved"));  // While trial 2 or 3 runs, there is no place for trial 4.
    WriteFileAtomic(trials, "no folder");
  });
  const Error error = ErrorOf([&] { runner.Run(); });
  EXPECT_THAT(error.what(), HasSubstr("out/trials"));
  EXPECT_THAT(error.what(),
              HasSubstr(fmt::format("`dsat resume {}`, which runs again what is not recorded",
                                    experiment.id())));
  ExpectNothingRuns();
  fs::remove(trials);
  Experiment again = Experiment::Open(store_, experiment.id());
  EXPECT_EQ(Runner(again, options, nullptr).Run(), ExperimentState::kCompleted);
  EXPECT_EQ(again.search().trials().size(), 5u);
}

}  // namespace
}  // namespace dsat
