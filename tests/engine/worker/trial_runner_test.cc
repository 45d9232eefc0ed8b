// dsat-trial and a runner's server: what it reports, and that it does what it is told.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <variant>
#include <vector>

#include "engine/worker/reporter.h"
#include "searcher/service/service.h"
#include "tests/engine/worker/trial_process.h"

namespace dsat::engine {
namespace {

constexpr AttemptRef kAttempt{1, 2, 3};

class TrialRunnerTest : public TrialProcessTest {
 protected:
  TrialRunnerTest() {
    task_.experiment = kAttempt.experiment;
    task_.trial = kAttempt.trial;
    task_.attempt = kAttempt.attempt;
    task_.report_address = server_.address();
    server_.Admit(kAttempt);
    loop_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        for (TrialMessage& message : queue_.Drain())
          std::visit(*this, message);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~TrialRunnerTest() override { StopLoop(); }

  void StopLoop() {
    if (!loop_.joinable()) return;
    loop_.request_stop();
    loop_.join();
  }

 public:
  void operator()(ProgressMessage& message) {
    progress_.push_back(message);
    if (on_progress_) on_progress_();
  }
  void operator()(MeasuredMessage& message) {
    measured_.push_back(message.result);
    if (message.profile) profile_ = message.profile;
    const size_t next = measured_.size() - 1;
    message.next_point.set_value(next < next_points_.size() ? std::optional(next_points_[next])
                                                            : std::nullopt);
  }
  void operator()(InfeasibleMessage& message) { infeasible_.push_back(message); }

 protected:
  EventQueue<TrialMessage> queue_;
  TrialServer server_{&queue_};
  std::function<void()> on_progress_;
  std::vector<Point> next_points_;
  std::vector<ProgressMessage> progress_;
  std::vector<PointResult> measured_;
  std::optional<ModelProfile> profile_;
  std::vector<InfeasibleMessage> infeasible_;
  std::jthread loop_;
};

TEST_F(TrialRunnerTest, RankZeroReportsAndEveryRankGivesSignsOfLife) {
  const auto exits = RunWell(2);
  StopLoop();
  EXPECT_EQ(exits[0].out, "");
  ASSERT_EQ(measured_.size(), 1u);
  EXPECT_EQ(measured_[0].point.micro_batch_size, 2);
  EXPECT_GT(measured_[0].measurement.at("throughput").value, 0);
  std::set<int64_t> ranks;
  for (const ProgressMessage& message : progress_)
    ranks.insert(message.rank);
  EXPECT_THAT(ranks, testing::ElementsAre(0, 1));
  EXPECT_EQ(progress_[0].step, 0);
}

TEST_F(TrialRunnerTest, WorkWithinAStepIsASignOfLife) {
  std::atomic<int> num_signs = 0;
  on_progress_ = [&] { ++num_signs; };
  const auto signs_come = [&](const std::function<void()>& work) {
    const int before = num_signs;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (num_signs < before + 2 && std::chrono::steady_clock::now() < end) {
      work();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return num_signs >= before + 2;
  };
  {
    Reporter reporter(task_, server_.key(), 0);
    reporter.Progress(7);
    EXPECT_TRUE(signs_come([&] { reporter.Alive(); }));
    const Reporter::LongWork saving(reporter);
    EXPECT_TRUE(signs_come([] {}));
  }
  StopLoop();
  EXPECT_EQ(progress_.back().step, 7);
}

TEST_F(TrialRunnerTest, AProfileCarriesTheModel) {
  task_.mode = TrialTask::Mode::kProfile;
  RunWell(1);
  StopLoop();
  ASSERT_TRUE(profile_.has_value());
  EXPECT_GT(profile_->num_params, 0);
  EXPECT_GT(profile_->device_memory_bytes, 0);
}

TEST_F(TrialRunnerTest, OneLaunchMeasuresThePointsItIsGiven) {
  next_points_ = {{4, 2}, {1, 3}};
  RunWell(2);
  StopLoop();
  ASSERT_EQ(measured_.size(), 3u);
  EXPECT_EQ(measured_[1].point.micro_batch_size, 4);
  EXPECT_EQ(measured_[2].point.accumulation_steps, 3);
  // 4 x 2 x 2 samples, and 1 x 3 x 2. Both are medians, whose product varies where steps do. A
  // larger micro-batch needs more memory.
  const Measurement& large = measured_[1].measurement;
  EXPECT_NEAR(large.at("throughput").value * large.at("latency").value, 16'000, 4'000);
  EXPECT_GT(large.at("peak_bytes").value, measured_[2].measurement.at("peak_bytes").value);
}

TEST_F(TrialRunnerTest, ALaterPointIsMeasuredAsInAProcessOfItsOwn) {
  task_.fixed_window = true;                // The loss is that of the last step.
  next_points_ = {{8, 1}, {1, 4}, {2, 2}};  // A larger one leaves blocks of memory behind.
  for (const int stage : {0, 3}) {
    task_.ds_config["zero_optimization"]["stage"] = stage;
    measured_.clear();
    RunWell(2);
    ASSERT_EQ(measured_.size(), 4u);
    const Measurement later = measured_.back().measurement;
    const Measurement alone = measured_.front().measurement;  // The same point, as the first one.
    EXPECT_EQ(later.at("peak_bytes").value, alone.at("peak_bytes").value);
    EXPECT_EQ(later.at("loss").value, alone.at("loss").value);
    EXPECT_LT(later.at("peak_bytes").value, measured_[1].measurement.at("peak_bytes").value);
  }
}

// A budget that the later point fills to the last byte.
TEST_F(TrialRunnerTest, ALaterPointGetsAllMemoryThatTheOneBeforeItHad) {
  next_points_ = {{8, 1}};
  RunWell(1);
  task_.device_memory_bytes =
      static_cast<int64_t>(measured_.at(1).measurement.at("peak_bytes").value);
  measured_.clear();
  next_points_ = {{8, 1}, {2, 2}, {8, 1}};
  RunWell(1);
  EXPECT_EQ(measured_.size(), 4u);
}

TEST_F(TrialRunnerTest, ALaterPointThatDoesNotFitLosesNothing) {
  next_points_ = {{1024, 1}, {1, 1}};
  task_.device_memory_bytes = 4'000'000;
  const auto exits = Run(2);
  StopLoop();
  for (const RankExit& exit : exits) {
    EXPECT_EQ(exit.code, kExitOk) << exit.log;
    EXPECT_THAT(exit.log, testing::HasSubstr("those before it count micro_batch_size=1024"));
  }
  EXPECT_EQ(measured_.size(), 1u);
  EXPECT_TRUE(infeasible_.empty());
}

// The embedding and its block need more than the head, the other stage.
TEST_F(TrialRunnerTest, WhereOneRankAloneRunsOutOfMemoryAllEndWell) {
  task_.model["n_layer"] = 1;
  task_.ds_config["zero_optimization"]["stage"] = 0;
  task_.ds_config["pipeline"] = {{"stages", 2}, {"partition", "uniform"}};
  task_.device_memory_bytes = 2'000'000;
  next_points_ = {{128, 2}};
  const auto exits = Run(2);
  StopLoop();
  int64_t num_out_of_memory = 0;
  for (const RankExit& exit : exits) {
    EXPECT_EQ(exit.code, kExitOk) << exit.log;
    EXPECT_THAT(exit.log, testing::HasSubstr("those before it count"));
    num_out_of_memory += exit.log.find("device memory: ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(num_out_of_memory, 1);
  EXPECT_EQ(measured_.size(), 1u);
}

TEST_F(TrialRunnerTest, WhenOneIsToldToStopAllRanksSaveACheckpointAndEnd) {
  ToTrain(1'000'000);
  on_progress_ = [this] {
    if (progress_.back().step > 0) server_.Dismiss(kAttempt);
  };
  RunWell(2);
  StopLoop();
  const std::string tag = ReadFile(task_.checkpoint_dir + "/latest");
  EXPECT_TRUE(std::filesystem::exists(task_.checkpoint_dir + "/" + tag));
}

TEST_F(TrialRunnerTest, ARankThatDiesEndsTheOthersWithItsName) {
  ToTrain(1'000'000);
  on_progress_ = [this] {
    if (progress_.back().rank == 0 && progress_.back().step > 0) kill(pids_[1], SIGKILL);
  };
  const auto exits = Run(2);
  StopLoop();
  EXPECT_EQ(exits[0].code, kExitError);
  EXPECT_THAT(exits[0].log, testing::HasSubstr("rank 1"));
  EXPECT_EQ(exits[1].code, -1);
}

TEST_F(TrialRunnerTest, OutOfMemoryIsReportedWithTheNumbers) {
  task_.device_memory_bytes = 200'000;
  const auto exits = Run(1);
  StopLoop();
  EXPECT_EQ(exits[0].code, kExitInfeasible);
  ASSERT_EQ(infeasible_.size(), 1u);
  EXPECT_THAT(infeasible_[0].reason, testing::HasSubstr("device memory"));
  EXPECT_TRUE(measured_.empty());
}

TEST_F(TrialRunnerTest, ARunnerThatIsGoneDoesNotStopTrainingButIsLogged) {
  ToTrain(3);
  task_.report_address = "unix:/nonexistent/socket";
  const auto exits = RunWell(1);
  EXPECT_THAT(exits[0].log, testing::HasSubstr("cannot report progress"));
}

}  // namespace
}  // namespace dsat::engine
