// Tests TrialService from the rank's call to the runner's loop, and its tokens.
#include "searcher/service.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "proto/client.h"
#include "searcher/service_listener.h"
#include "tests/base/error_code.h"

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

TEST(TrialServerTest, TheLoopHearsWhatARankSays) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kAttempt);
  TrialClient client = TrialClient::Connect(server.address(), server.token(), kAttempt);
  EXPECT_FALSE(client.Progress(1, 7, 12.5, 3.25, "measuring"));
  client.Infeasible(2, "needs 3 GiB of 2 GiB \xff");
  const std::vector<TrialMessage> seen = Serve(queue, 2, [](TrialMessage&) {});
  const auto& progress = std::get<ProgressMessage>(seen[0]);
  EXPECT_EQ(progress.attempt, kAttempt);
  EXPECT_EQ(progress.rank, 1);
  EXPECT_EQ(progress.step, 7);
  EXPECT_EQ(progress.latency_ms, 12.5);
  EXPECT_EQ(progress.loss, 3.25);
  EXPECT_EQ(progress.phase, "measuring");
  const auto& infeasible = std::get<InfeasibleMessage>(seen[1]);
  EXPECT_EQ(infeasible.rank, 2);
  EXPECT_EQ(infeasible.reason, "needs 3 GiB of 2 GiB \uFFFD");
}

TEST(TrialServerTest, AMeasurementIsAnsweredWithTheNextPoint) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kAttempt);
  std::optional<Point> first, second;
  std::thread rank([&] {
    TrialClient client = TrialClient::Connect(server.address(), server.token(), kAttempt);
    first = client.Measured(SomeResult(), ModelProfile{10, 9, 8, 7, 6, 5});
    second = client.Measured(SomeResult(), std::nullopt);
  });
  bool answered_one = false;
  const auto seen = Serve(queue, 2, [&](TrialMessage& message) {
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

TEST(TrialServerTest, WithoutTheTokenNothingReachesTheLoop) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kAttempt);
  std::string wrong = server.token();
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  for (const std::string& token : {wrong, std::string(), server.token() + "0"}) {
    TrialClient client = TrialClient::Connect(server.address(), token, kAttempt);
    const auto expected = ErrorCode::kUnauthenticated;
    EXPECT_EQ(CodeOf([&] { client.Progress(0, 1, 0, 0, "starting"); }), expected);
    EXPECT_EQ(CodeOf([&] { client.Measured(SomeResult(), std::nullopt); }), expected);
    EXPECT_EQ(CodeOf([&] { client.Infeasible(0, "no"); }), expected);
  }
  EXPECT_TRUE(queue.Drain().empty());
}

TEST(TrialServerTest, AnAttemptThatDoesNotRunHereIsToldToStop) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kAttempt);
  TrialClient client = TrialClient::Connect(server.address(), server.token(), {1, 2, 4});
  EXPECT_TRUE(client.Progress(0, 1, 0, 0, "starting"));
  EXPECT_EQ(CodeOf([&] { client.Measured(SomeResult(), std::nullopt); }),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf([&] { client.Infeasible(0, "no"); }), ErrorCode::kFailedPrecondition);
  server.Admit({1, 2, 4});
  EXPECT_FALSE(client.Progress(0, 1, 0, 0, "starting"));
  server.Dismiss({1, 2, 4});
  EXPECT_TRUE(client.Progress(0, 2, 0, 0, "starting"));
  EXPECT_EQ(queue.Drain().size(), 1u);
}

TEST(TrialServerTest, AMeasurementThatCannotBeIsRefused) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kAttempt);
  TrialClient client = TrialClient::Connect(server.address(), server.token(), kAttempt);
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
  EXPECT_TRUE(queue.Drain().empty());
}

TEST(TrialServerTest, AWaitingRankIsReleasedWhenTheRunnerEnds) {
  EventQueue<TrialMessage> queue;
  auto server = std::make_unique<TrialServer>(&queue);
  server->Admit(kAttempt);
  std::optional<ErrorCode> code;
  std::thread rank([&, address = server->address(), token = server->token()] {
    TrialClient client = TrialClient::Connect(address, token, kAttempt);
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

TEST(TrialServerTest, ADroppedMeasurementIsAnError) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kAttempt);
  std::optional<ErrorCode> code;
  std::thread rank([&] {
    TrialClient client = TrialClient::Connect(server.address(), server.token(), kAttempt);
    code = CodeOf([&] { client.Measured(SomeResult(), std::nullopt); });
  });
  Serve(queue, 1, [](TrialMessage&) {});  // The messages are destroyed unanswered.
  rank.join();
  EXPECT_EQ(code, ErrorCode::kUnavailable);
}

TEST(TrialServerTest, ManyRanksAtOnceAreAllHeard) {
  constexpr int kRanks = 8, kSteps = 50;
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kAttempt);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&server, rank] {
      TrialClient client = TrialClient::Connect(server.address(), server.token(), kAttempt);
      for (int step = 1; step <= kSteps; ++step)
        client.Progress(rank, step, 1, 1, "training");
    });
  }
  std::map<int64_t, int64_t> last_step;
  Serve(queue, kRanks * kSteps, [&](TrialMessage& message) {
    const auto& progress = std::get<ProgressMessage>(message);
    EXPECT_EQ(progress.step, last_step[progress.rank] + 1);  // In order, none lost.
    last_step[progress.rank] = progress.step;
  });
  for (std::thread& rank : ranks)
    rank.join();
  EXPECT_EQ(last_step.size(), static_cast<size_t>(kRanks));
}

// The unix sockets that the kernel knows, one a line; '@' opens a name that is no file.
std::string UnixSockets() {
  std::ifstream file("/proc/net/unix");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(TrialServerTest, TheSocketIsNoFileAndEndsWithTheServer) {
  EventQueue<TrialMessage> queue;
  std::string name;
  {
    TrialServer server(&queue);
    ASSERT_TRUE(server.address().starts_with("unix-abstract:dsat-")) << server.address();
    name = "@" + server.address().substr(server.address().find(':') + 1);
    EXPECT_NE(UnixSockets().find(name), std::string::npos);
  }
  EXPECT_EQ(UnixSockets().find(name), std::string::npos);
}

TEST(TokenTest, TokensAre128RandomBits) {
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i)
    tokens.insert(RandomToken());
  EXPECT_EQ(tokens.size(), 100u);
  for (const std::string& token : tokens) {
    EXPECT_EQ(token.size(), 32u);
    EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

TEST(TokenTest, OnlyTheWholeTokenIsTheToken) {
  EXPECT_TRUE(SameToken("abc", "abc"));
  EXPECT_FALSE(SameToken("abd", "abc"));
  EXPECT_FALSE(SameToken("xbc", "abc"));
  EXPECT_FALSE(SameToken("ab", "abc"));
  EXPECT_FALSE(SameToken("abcd", "abc"));
  EXPECT_FALSE(SameToken("", "abc"));
}

// A database with one experiment whose profile is given, and a folder for sockets.

}  // namespace
}  // namespace dsat
