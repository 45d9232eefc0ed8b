// Tests TrialService from the rank's call to the runner's loop, and its keys.
#include "searcher/service/service.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "proto/client.h"
#include "tests/base/error_code.h"
#include "tests/sanitizers.h"

namespace dsat {
namespace {

constexpr AttemptRef kAttempt{1, 2, 3};

PointResult SomeResult() {
  return {{4, 2}, {{"throughput", {12.5, 0.5, 3}}}};
}

// A small runner loop, which answers until it has seen `count` messages.
std::vector<TrialMessage> Serve(EventQueue<TrialMessage>& queue, size_t count,
                                const std::function<void(TrialMessage&)>& answer) {
  std::vector<TrialMessage> seen;
  while (seen.size() < count) {
    for (TrialMessage& message : queue.Drain()) {
      answer(message);
      seen.push_back(std::move(message));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return seen;
}

// A server that expects one attempt, and a client of a rank of it.
class TrialServerTest : public testing::Test {
 protected:
  TrialServerTest() { server_.Admit(kAttempt); }
  TrialClient Client() { return TrialClient::Connect(server_.address(), server_.key(), kAttempt); }

  EventQueue<TrialMessage> queue_;
  TrialServer server_{&queue_};
};

TEST_F(TrialServerTest, TheLoopHearsWhatARankSays) {
  TrialClient client = Client();
  EXPECT_FALSE(client.Progress(1, 7, /*begins=*/true, {"a warning", "\xff"}));
  client.Infeasible(2, "needs 3 GiB of 2 GiB \xff");
  const std::vector<TrialMessage> seen = Serve(queue_, 2, [](TrialMessage&) {});
  const auto& progress = std::get<ProgressMessage>(seen[0]);
  EXPECT_EQ(progress.attempt, kAttempt);
  EXPECT_EQ(progress.rank, 1);
  EXPECT_EQ(progress.step, 7);
  EXPECT_TRUE(progress.begins);
  EXPECT_EQ(progress.warnings, (std::vector<std::string>{"a warning", "\uFFFD"}));
  const auto& infeasible = std::get<InfeasibleMessage>(seen[1]);
  EXPECT_EQ(infeasible.rank, 2);
  EXPECT_EQ(infeasible.reason, "needs 3 GiB of 2 GiB \uFFFD");
}

TEST_F(TrialServerTest, AMeasurementIsAnsweredWithTheNextPoint) {
  std::optional<Point> first, second;
  std::thread rank([&] {
    TrialClient client = Client();
    first = client.Measured(SomeResult(), ModelProfile{10, 9, 8, 7, 6, 5});
    second = client.Measured(SomeResult(), std::nullopt);
  });
  bool answered_one = false;
  const auto seen = Serve(queue_, 2, [&](TrialMessage& message) {
    auto& measured = std::get<MeasuredMessage>(message);
    if (answered_one) return measured.next_point.set_value(std::nullopt);
    answered_one = true;
    measured.next_point.set_value(Point{8, 1});
  });
  rank.join();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->micro_batch_size, 8);
  EXPECT_EQ(first->accumulation_steps, 1);
  EXPECT_FALSE(second.has_value());
  const auto& message = std::get<MeasuredMessage>(seen[0]);
  EXPECT_EQ(message.result.point.micro_batch_size, 4);
  EXPECT_EQ(message.result.measurement.at("throughput").value, 12.5);
  ASSERT_TRUE(message.profile.has_value());
  EXPECT_EQ(message.profile->trainable_num_params, 9);
  EXPECT_FALSE(std::get<MeasuredMessage>(seen[1]).profile.has_value());
}

TEST_F(TrialServerTest, WithoutTheKeyNothingReachesTheLoop) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue, "127.0.0.1"), other(&queue, "127.0.0.1");
  server.Admit(kAttempt);
  for (const std::string& key : {other.key(), std::string()}) {
    TrialClient client = TrialClient::Connect(server.address(), key, kAttempt);
    const auto expected = ErrorCode::kUnavailable;
    EXPECT_EQ(CodeOf([&] { client.Progress(0, 1); }), expected);
    EXPECT_EQ(CodeOf([&] { client.Infeasible(0, "no"); }), expected);
  }
  EXPECT_TRUE(queue.Drain().empty());
  TrialClient client = TrialClient::Connect(server.address(), server.key(), kAttempt);
  client.Progress(0, 1);
  EXPECT_EQ(queue.Drain().size(), 1u);
}

TEST_F(TrialServerTest, AnAttemptThatDoesNotRunHereIsToldToStop) {
  TrialClient client = TrialClient::Connect(server_.address(), server_.key(), {1, 2, 4});
  EXPECT_TRUE(client.Progress(0, 1));
  EXPECT_EQ(CodeOf([&] { client.Measured(SomeResult(), std::nullopt); }),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf([&] { client.Infeasible(0, "no"); }), ErrorCode::kFailedPrecondition);
  server_.Admit({1, 2, 4});
  EXPECT_FALSE(client.Progress(0, 1));
  server_.Dismiss({1, 2, 4});
  EXPECT_TRUE(client.Progress(0, 2));
  EXPECT_EQ(queue_.Drain().size(), 1u);
}

TEST_F(TrialServerTest, AMeasurementThatCannotBeIsRefused) {
  TrialClient client = Client();
  EXPECT_EQ(CodeOf([&] {
              client.Measured({{1, 1}, {{"speed", {1, 0, 1}}}}, std::nullopt);
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf([&] {
              client.Measured({{0, 1}, {}}, std::nullopt);
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf([&] { client.Measured(SomeResult(), ModelProfile{}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(queue_.Drain().empty());
}

TEST_F(TrialServerTest, AWaitingRankIsReleasedWhenTheRunnerEnds) {
  EventQueue<TrialMessage> queue;
  auto server = std::make_unique<TrialServer>(&queue);
  server->Admit(kAttempt);
  std::optional<ErrorCode> code;
  std::thread rank([&, address = server->address(), key = server->key()] {
    TrialClient client = TrialClient::Connect(address, key, kAttempt);
    code = CodeOf([&] { client.Measured(SomeResult(), std::nullopt); });
  });
  pollfd called = {queue.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&called, 1, 10'000), 1);
  std::thread dropper([&queue] {
    while (queue.Push(ProgressMessage{}))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  server.reset();  // Closes the queue: Push is refused from now on.
  dropper.join();
  rank.join();
  EXPECT_TRUE(code == ErrorCode::kUnavailable || code == ErrorCode::kCancelled);
}

TEST_F(TrialServerTest, ADroppedMeasurementIsAnError) {
  std::optional<ErrorCode> code;
  std::thread rank([&] {
    TrialClient client = Client();
    code = CodeOf([&] { client.Measured(SomeResult(), std::nullopt); });
  });
  Serve(queue_, 1, [](TrialMessage&) {});  // The messages are destroyed unanswered.
  rank.join();
  EXPECT_EQ(code, ErrorCode::kUnavailable);
}

TEST_F(TrialServerTest, ManyRanksAtOnceAreAllHeard) {
  constexpr int kRanks = 8, kSteps = 50;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([this, rank] {
      TrialClient client = Client();
      for (int step = 1; step <= kSteps; ++step)
        client.Progress(rank, step);
    });
  }
  std::map<int64_t, int64_t> last_step;
  Serve(queue_, kRanks * kSteps, [&](TrialMessage& message) {
    const auto& progress = std::get<ProgressMessage>(message);
    EXPECT_EQ(progress.step, last_step[progress.rank] + 1);  // In order, none lost.
    last_step[progress.rank] = progress.step;
  });
  for (std::thread& rank : ranks)
    rank.join();
  EXPECT_EQ(last_step.size(), static_cast<size_t>(kRanks));
}

// A connection to the unix socket of `address` that says `words`.
UniqueFd Connect(const std::string& address, const std::string& words) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  address.copy(name.sun_path, sizeof(name.sun_path) - 1, std::string("unix:").size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) fd.Reset();
  if (fd) send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
  return fd;
}

// A rank reports to a server in a process of 400 descriptors, while others connect many times,
// say `words` and keep the connections as long as there are descriptors. Returns 0 if every report
// was heard.
int ReportUnderAttack(const std::string& words) {
  const rlimit few = {400, 400};
  if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kAttempt);
  TrialClient early = TrialClient::Connect(server.address(), server.key(), kAttempt);
  early.Progress(0, 1);
  std::deque<UniqueFd> hostile;
  for (int i = 0; i < 1000; ++i) {
    hostile.push_back(Connect(server.address(), words));
    if (!hostile.back()) hostile.erase(hostile.begin(), hostile.begin() + 50);
    if (i % 50 == 0) early.Progress(0, 2 + i);
  }
  std::thread loop([&queue] {
    Serve(queue, 1 + 20 + 1, [](TrialMessage& message) {
      if (auto* measured = std::get_if<MeasuredMessage>(&message))
        measured->next_point.set_value(Point{8, 1});
    });
  });
  TrialClient late = TrialClient::Connect(server.address(), server.key(), kAttempt);
  const std::optional<Point> next = late.Measured(SomeResult(), std::nullopt);
  loop.join();
  return next && next->micro_batch_size == 8 ? 0 : 2;
}

TEST(TrialServerDeathTest, RanksAreHeardWhileOthersExhaustTheConnections) {
  if (IsSanitized()) GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a pipe to look at an object";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(_exit(ReportUnderAttack("")), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(_exit(ReportUnderAttack("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
              testing::ExitedWithCode(0), "");
}

TEST_F(TrialServerTest, WhatDoesNotBeginAsHttp2IsClosed) {
  const UniqueFd fd = Connect(server_.address(), "GET / HTTP/1.1\r\n\r\n");
  // The server may send its settings before an end or a reset.
  char bytes[256];
  ssize_t num_received = 1;
  for (int i = 0; i < 100 && num_received > 0; ++i)
    num_received = recv(fd.get(), bytes, sizeof bytes, 0);
  EXPECT_LE(num_received, 0);
}

TEST_F(TrialServerTest, TheSocketIsNoFileAndEndsWithTheServer) {
  EventQueue<TrialMessage> queue;
  std::string address;
  {
    TrialServer server(&queue);
    address = server.address();
    ASSERT_TRUE(address.starts_with("unix:/proc/")) << address;
    EXPECT_TRUE(Connect(address, ""));
  }
  EXPECT_FALSE(Connect(address, ""));
}

}  // namespace
}  // namespace dsat
