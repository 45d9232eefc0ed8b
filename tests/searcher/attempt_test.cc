// Tests the time limits of attempts with a real process: fake_trial replaces both binaries.
#include "searcher/attempt.h"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "searcher/service/service.h"
#include "tests/searcher/runner_fixture.h"

namespace dsat {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

class AttemptTest : public RunnerTest {};

TEST_F(AttemptTest, APauseOfTheRunnerIsNoHangOfTheRanks) {
  const ExperimentSpec spec = Spec({{"0", {"mute"}}});
  EventQueue<TrialMessage> queue;
  const TrialServer server(&queue, "");
  const std::unique_ptr<LaunchTarget> target = MakeTarget(spec, kFake);
  LaunchRequest request;
  request.full_run = true;
  request.ds_config = spec.ds_config;
  request.dir = Path("out");
  request.report_address = server.address();
  request.report_key = server.key();
  std::filesystem::create_directories(request.dir);
  constexpr milliseconds kHang{800};
  Attempt attempt(kFake, target.get(), request, {.start = {}, .hang = kHang, .total = {}});
  const auto look = [&] {
    attempt.Observe();
    return attempt.End();
  };
  const steady_clock::time_point sign = steady_clock::now();
  attempt.OnProgress(1);
  EXPECT_FALSE(look());
  constexpr milliseconds kPause{2500};
  std::this_thread::sleep_for(kPause);  // As if this process was stopped.
  std::optional<AttemptEnd> end;
  while (!(end = look()))
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_GT(steady_clock::now() - sign, kPause + kHang);
  EXPECT_EQ(end->outcome.state, TrialState::kFailed);
  EXPECT_THAT(end->outcome.reason, HasSubstr("no progress for 0.8 s (--hang-timeout)"));
}

TEST_F(AttemptTest, WhatAKilledRunnerWasWritingIsRemovedBeforeTheNextAttempt) {
  const ExperimentSpec spec = Spec({{"0", {"silent", "silent"}}});
  EventQueue<TrialMessage> queue;
  const TrialServer server(&queue, "");
  const std::unique_ptr<LaunchTarget> target = MakeTarget(spec, kFake);
  const std::string before = Path("out/trials/0/attempt0");
  std::filesystem::create_directories(before);
  WriteFileAtomic(before + "/task.json.tmp.123.0", "{\"half\":");
  WriteFileAtomic(before + "/rank0.log", "a log");
  LaunchRequest request;
  request.attempt = 1;
  request.ds_config = spec.ds_config;
  request.dir = Path("out/trials/0/attempt1");
  request.report_address = server.address();
  request.report_key = server.key();
  std::filesystem::create_directories(request.dir);
  const Attempt attempt(kFake, target.get(), request, {});
  EXPECT_FALSE(std::filesystem::exists(before + "/task.json.tmp.123.0"));
  EXPECT_EQ(ReadFile(before + "/rank0.log"), "a log");
}

}  // namespace
}  // namespace dsat
