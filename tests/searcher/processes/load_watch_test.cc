// Tests how the use of the processors by others is found: the texts of /proc, and a busy process.
#include "searcher/processes/load_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "searcher/processes/process_tree.h"
#include "searcher/runner.h"
#include "tests/build_folder.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

constexpr char kProcStat[] =
    "cpu  600 60 300 4000 40 4 6 80 0 0\n"
    "cpu0 100 10 50 1000 10 1 2 20 7 0\n"
    "cpu1 200 20 100 1000 10 1 2 20 0 0\n"
    "cpu10 300 30 150 2000 20 2 2 40 0 0\n"
    "intr 1 2 3\n"
    "ctxt 5\n";

TEST(LoadWatchTest, TheTicksOfTheProcessorsAreThoseOfTheUsableOnes) {
  const MachineTicks one = ParseMachineTicks(kProcStat, {0});
  EXPECT_EQ(one.busy, 100 + 10 + 50 + 1 + 2 + 20);
  EXPECT_EQ(one.total, one.busy + 1000 + 10);
  const MachineTicks two = ParseMachineTicks(kProcStat, {0, 10, 99});
  EXPECT_EQ(two.busy, one.busy + 300 + 30 + 150 + 2 + 2 + 40);
  EXPECT_EQ(two.total, one.total + 300 + 30 + 150 + 2000 + 20 + 2 + 2 + 40);
  EXPECT_EQ(ParseMachineTicks("", {0}).total, 0);
  EXPECT_EQ(ParseMachineTicks("no such thing\n", {0}).total, 0);
  EXPECT_EQ(ParseMachineTicks("cpu0\n", {0}).total, 0);
}

TEST(LoadWatchTest, TheTicksOfAProcessAreItsOwnAndThoseOfItsEndedChildren) {
  const auto process = ParseProcessStat(
      "4711 (a) name (of) S) S 17 4711 4711 0 -1 4194304 5 6 7 8 100 20 3000 400 20 0 1 0 99 0 0");
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->parent, 17);
  EXPECT_EQ(process->group, 4711);
  EXPECT_EQ(process->ticks, 3520);
  EXPECT_FALSE(ParseProcessStat("").has_value());
  EXPECT_FALSE(ParseProcessStat("4711 (short) S 17 4711").has_value());
  EXPECT_FALSE(
      ParseProcessStat("1 (a) S 1 1 1 0 -1 4 5 6 7 8 9223372036854775807 1 1 1 20 0").has_value());
}

// A process that keeps one processor of this test busy until it is destroyed.
class BusyProcess {
 public:
  // An orphan's parent has ended, so that it is no descendant of this process.
  explicit BusyProcess(bool orphan) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      const pid_t busy = orphan ? fork() : 0;
      if (busy == 0) {
        const pid_t self = getpid();
        if (write(ends[1], &self, sizeof(self)) != sizeof(self)) _exit(1);
        alarm(60);
        for (std::atomic<int64_t> i = 0;; ++i) {
        }
      }
      _exit(0);
    }
    EXPECT_EQ(read(ends[0], &pid_, sizeof(pid_)), static_cast<ssize_t>(sizeof(pid_)));
    close(ends[0]);
    close(ends[1]);
    if (orphan) waitpid(child, nullptr, 0);
  }
  int64_t ticks() const { return StatOf(pid_)->ticks; }
  ~BusyProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

// This test on one processor, so that a busy process shows however many there are.
class BusyLoadWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    cpu_ = sched_getcpu();
    CPU_SET(cpu_, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  }
  void TearDown() override { sched_setaffinity(0, sizeof(before_), &before_); }

  static double OthersPart(LoadWatch& watch) {
    while (true) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (const auto part = watch.OthersPart()) return *part;
    }
  }

  int64_t TotalTicks() const { return ParseMachineTicks(ReadFile("/proc/stat"), {cpu_}).total; }

  int cpu_ = 0;
  cpu_set_t before_;
};

TEST_F(BusyLoadWatchTest, AProcessThatIsNotOursIsSeen) {
  LoadWatch watch;
  const BusyProcess other(/*orphan=*/true);
  EXPECT_GT(OthersPart(watch), 0.2);
}

// Whatever else runs here takes what these leave it.
TEST_F(BusyLoadWatchTest, OurOwnProcessesAreNotOthers) {
  LoadWatch watch;
  const int64_t begin = TotalTicks();
  const BusyProcess first(/*orphan=*/false), second(/*orphan=*/false), third(/*orphan=*/false);
  const double others = OthersPart(watch);
  const auto own = static_cast<double>(first.ticks() + second.ticks() + third.ticks());
  const auto total = static_cast<double>(TotalTicks() - begin);
  EXPECT_GT(own, 0);
  EXPECT_LT(others, 1 - own / total + 0.1);
}

// All attempts of its only trial hang for a second.
TEST_F(BusyLoadWatchTest, ASearchSaysOnceThatOthersUseItsProcessors) {
  const BusyProcess other(/*orphan=*/true);
  const TempFolder folder;
  Store store = Store::InMemory();
  ExperimentSpec spec = SampleSpec();
  spec.slots_per_trial = 1;
  spec.max_restarts = 1;
  spec.hyperparameters = {
      {"model", {{"script", {{"0", {"hang"}}}}, {"journal", folder.path() + "/journal"}}}};
  Experiment experiment = Experiment::Create(store, spec);
  RunnerOptions options;
  options.dsat_binary = options.trial_binary = BuildFolder() + "/fake_trial";
  options.out_dir = folder.path() + "/out";
  options.hang_timeout = std::chrono::seconds(1);
  std::vector<std::string> notes;
  Runner(experiment, options, [&notes](const Experiment&, const RunnerEvent& event) {
    if (event.text.starts_with("other processes use ")) notes.push_back(event.text);
  }).Run();
  EXPECT_EQ(experiment.NumAttempts(0), 3);
  EXPECT_THAT(notes, testing::ElementsAre(testing::HasSubstr("measurements are less certain")));
}

TEST_F(BusyLoadWatchTest, AMomentIsTooShort) {
  const auto begin = std::chrono::steady_clock::now();
  LoadWatch watch;
  const bool has_part = watch.OthersPart().has_value();
  if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(1))
    GTEST_SKIP() << "this machine took a second for a moment";
  EXPECT_FALSE(has_part);
}

}  // namespace
}  // namespace dsat
