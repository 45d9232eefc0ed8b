// Both services, from the client's call to what the other side sees.
#include "searcher/service.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "db/store.h"
#include "proto/client.h"
#include "searcher/experiment.h"
#include "searcher/search.h"
#include "searcher/service_listener.h"
#include "tests/base/error_code.h"
#include "tests/db/store_fixtures.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

constexpr AttemptRef kAttempt{1, 2, 3};

PointResult SomeResult() {
  return {{4, 2}, {{"throughput", {12.5, 0.5, 3}}}};
}

// The loop of a runner in small: answers until it has seen `count` messages.
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
  EXPECT_EQ(infeasible.reason, "needs 3 GiB of 2 GiB ?");
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
class ExperimentServerTest : public testing::Test {
 protected:
  void SetUp() override {
    Store store = Store::Open(database(), Store::Mode::kCreate);
    id_ = Experiment::Create(store, Spec()).id();
  }

  static ExperimentSpec Spec() {
    ExperimentSpec spec;
    spec.name = "served";
    spec.method = "random";
    spec.entrypoint = {"builtin"};
    spec.ds_config = {{"train_micro_batch_size_per_gpu", 1},
                      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.001}}}}},
                      {"zero_optimization", {{"stage", 1}}}};
    spec.profile = ModelProfile{1000000, 1000000, 1 << 20, int64_t{1} << 28, 1000000};
    spec.options.max_trials = 6;
    spec.options.metric = "throughput";
    return spec;
  }

  static Measurement Measured(const Trial& trial) {
    const double micro_batch = trial.ds_config.at("train_micro_batch_size_per_gpu").get<double>();
    return {{"throughput", {100 + micro_batch, 1, 3}}};
  }

  std::string database() const { return folder_.path() + "/dsat.db"; }

  TempFolder folder_;
  ExperimentId id_ = 0;
};

TEST_F(ExperimentServerTest, AClientDrivesASearchToItsEnd) {
  const ExperimentServer server(database(), "");
  ExperimentClient client = ExperimentClient::Connect(server.address(), server.token());
  Search reference(Spec());  // The same search in this process must ask for the same trials.
  bool finished = false;
  int64_t told = 0;
  while (!finished) {
    const ExperimentClient::Asked asked = client.Ask(id_);
    const std::optional<Trial> expected = reference.Ask();
    ASSERT_EQ(asked.trial.has_value(), expected.has_value());
    if (!asked.trial) break;
    EXPECT_EQ(asked.trial->id, expected->id);
    EXPECT_EQ(asked.trial->kind, expected->kind);
    EXPECT_EQ(asked.trial->assignment, expected->assignment);
    EXPECT_EQ(asked.trial->ds_config, expected->ds_config);
    const Measurement measured = Measured(*asked.trial);
    finished = client.Tell(id_, asked.trial->id, {TrialState::kSucceeded, ""}, measured, {});
    reference.Tell(expected->id, {TrialState::kSucceeded, ""}, {{{1, 1}, measured}}, {});
    EXPECT_EQ(finished, reference.Finished());
    ++told;
  }
  EXPECT_GT(told, 1);
  EXPECT_TRUE(client.Ask(id_).finished);
  EXPECT_FALSE(client.Ask(id_).trial.has_value());

  const ExperimentClient::View view = client.GetExperiment(id_);
  EXPECT_EQ(view.state, "completed");
  EXPECT_EQ(view.best_trial, reference.Best());
  ASSERT_EQ(view.trials.size(), static_cast<size_t>(told));
  EXPECT_EQ(view.trials.back().state, TrialState::kSucceeded);
  EXPECT_EQ(MetricValue(view.trials.back(), "throughput"),
            Measured(view.trials.back()).at("throughput").value);
  EXPECT_EQ(Json::parse(view.spec_json).at("name"), "served");
}

TEST_F(ExperimentServerTest, CallsThatCannotBeAreRefusedAndChangeNothing) {
  const ExperimentServer server(database(), "");
  ExperimentClient client = ExperimentClient::Connect(server.address(), server.token());
  EXPECT_EQ(CodeOf([&] { client.Ask(99); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { client.GetExperiment(99); }), ErrorCode::kNotFound);
  const TrialId trial = client.Ask(id_).trial.value().id;
  const auto tell = [&](TrialId told, TrialState state, const Measurement& measurement) {
    return CodeOf([&] { client.Tell(id_, told, {state, "why"}, measurement, std::nullopt); });
  };
  const Measurement good = {{"throughput", {1, 0, 1}}};
  EXPECT_EQ(tell(trial, TrialState::kSucceeded, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(trial, TrialState::kRunning, good), ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(trial, TrialState::kSucceeded, {{"latency", {1, 0, 1}}}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(trial, TrialState::kSucceeded, {{"throughput", {-1, 0, 1}}}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(trial + 5, TrialState::kFailed, {}), ErrorCode::kNotFound);
  EXPECT_EQ(client.GetExperiment(id_).trials.at(0).state, TrialState::kRunning);
  EXPECT_EQ(tell(trial, TrialState::kInfeasible, {}), std::nullopt);
  EXPECT_EQ(tell(trial, TrialState::kInfeasible, {}), ErrorCode::kFailedPrecondition);
  const Trial told = client.GetExperiment(id_).trials.at(0);
  EXPECT_EQ(told.state, TrialState::kInfeasible);
  EXPECT_EQ(told.reason, "why");
}

TEST_F(ExperimentServerTest, TwoServersOfOneDatabaseFollowEachOther) {
  const ExperimentServer one(database(), "");
  const ExperimentServer two(database(), "127.0.0.1:0");
  ExperimentClient first = ExperimentClient::Connect(one.address(), one.token());
  ExperimentClient second = ExperimentClient::Connect(two.address(), two.token());
  std::set<TrialId> ids;
  for (int round = 0; round < 2; ++round) {
    const Trial a = first.Ask(id_).trial.value();
    const Trial b = second.Ask(id_).trial.value();
    ids.insert({a.id, b.id});
    // Each is told through the other.
    second.Tell(id_, a.id, {TrialState::kSucceeded, ""}, Measured(a), std::nullopt);
    first.Tell(id_, b.id, {TrialState::kSucceeded, ""}, Measured(b), std::nullopt);
  }
  EXPECT_EQ(ids, (std::set<TrialId>{0, 1, 2, 3}));
  const std::vector<Trial> trials = first.GetExperiment(id_).trials;
  EXPECT_EQ(trials.size(), 4u);
  for (const Trial& trial : trials) {
    EXPECT_EQ(trial.points.at(0).point.micro_batch_size,
              trial.ds_config.at("train_micro_batch_size_per_gpu"));
  }
}

TEST_F(ExperimentServerTest, ManyClientsAtOnceGetEachTrialOnce) {
  const ExperimentServer server(database(), "");
  std::mutex mutex;
  std::multiset<TrialId> ids;
  std::vector<std::thread> workers;
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([&] {
      ExperimentClient client = ExperimentClient::Connect(server.address(), server.token());
      for (ExperimentClient::Asked asked = client.Ask(id_); !asked.finished;
           asked = client.Ask(id_)) {
        if (!asked.trial) continue;
        client.Tell(id_, asked.trial->id, {TrialState::kSucceeded, ""}, Measured(*asked.trial), {});
        std::lock_guard lock(mutex);
        ids.insert(asked.trial->id);
      }
    });
  }
  for (std::thread& worker : workers)
    worker.join();
  EXPECT_EQ(ids, (std::multiset<TrialId>{0, 1, 2, 3, 4, 5}));
}

TEST_F(ExperimentServerTest, WithoutTheTokenNothingIsAsked) {
  const ExperimentServer server(database(), "");
  ExperimentClient client = ExperimentClient::Connect(server.address(), "guess");
  const auto expected = ErrorCode::kUnauthenticated;
  EXPECT_EQ(CodeOf([&] { client.Ask(id_); }), expected);
  EXPECT_EQ(CodeOf([&] { client.Tell(id_, 0, {TrialState::kFailed, "no"}, {}, {}); }), expected);
  EXPECT_EQ(CodeOf([&] { client.GetExperiment(id_); }), expected);
  ExperimentClient right = ExperimentClient::Connect(server.address(), server.token());
  EXPECT_TRUE(right.GetExperiment(id_).trials.empty());
}

TEST_F(ExperimentServerTest, APortOfThisMachineIsFoundAndKeptAlone) {
  const ExperimentServer server(database(), "127.0.0.1:0");
  EXPECT_TRUE(server.address().starts_with("127.0.0.1:"));
  EXPECT_NE(server.address(), "127.0.0.1:0");
  EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), server.address()); }),
            ErrorCode::kAlreadyExists);
  ExperimentClient client = ExperimentClient::Connect(server.address(), server.token());
  EXPECT_EQ(client.GetExperiment(id_).state, "active");
}

TEST_F(ExperimentServerTest, AddressesBeyondThisMachineAreRefused) {
  for (const std::string address : {"0.0.0.0:0", "[::]:0", "192.168.0.1:80", "host.example:80"}) {
    EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), address); }), ErrorCode::kInvalidArgument);
  }
}

TEST_F(ExperimentServerTest, ASocketOfALivingServerIsNotTaken) {
  const std::string address = "unix:" + folder_.path() + "/socket";
  const ExperimentServer server(database(), address);
  EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), address); }), ErrorCode::kAlreadyExists);
  ExperimentClient client = ExperimentClient::Connect(address, server.token());
  EXPECT_EQ(client.GetExperiment(id_).state, "active");
}

TEST_F(ExperimentServerTest, ASocketFileBelongsToThisUserAlone) {
  const std::string path = folder_.path() + "/socket";
  const ExperimentServer server(database(), "unix:" + path);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(ExperimentServerTest, AnAbstractSocketOfALivingServerIsNotTaken) {
  const ExperimentServer server(database(), "");
  EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), server.address()); }),
            ErrorCode::kAlreadyExists);
  ExperimentClient client = ExperimentClient::Connect(server.address(), server.token());
  EXPECT_EQ(client.GetExperiment(id_).state, "active");
}

TEST_F(ExperimentServerTest, ASocketThatADeadServerLeftIsReplaced) {
  const std::string path = folder_.path() + "/socket";
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  close(fd);
  ASSERT_TRUE(fs::exists(path));
  const ExperimentServer server(database(), "unix:" + path);
  ExperimentClient client = ExperimentClient::Connect(server.address(), server.token());
  EXPECT_EQ(client.GetExperiment(id_).state, "active");
}

TEST_F(ExperimentServerTest, AFileThatIsNoSocketIsLeftAlone) {
  const std::string path = folder_.path() + "/precious";
  WriteJsonFile(path, {{"keep", true}});
  EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), "unix:" + path); }),
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(ReadJsonFile(path), Json({{"keep", true}}));
}

TEST_F(ExperimentServerTest, ADatabaseThatIsNotThereIsAnError) {
  EXPECT_EQ(CodeOf([&] { ExperimentServer(folder_.path() + "/none.db", ""); }),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace dsat
