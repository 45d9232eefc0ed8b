// Tests ExperimentService from the client's call to the content of the database.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "db/sqlite.h"
#include "db/store.h"
#include "dsat.grpc.pb.h"
#include "searcher/search/experiment.h"
#include "searcher/search/runner_lock.h"
#include "searcher/search/search.h"
#include "searcher/service/service.h"
#include "tests/base/error_code.h"
#include "tests/db/store_fixtures.h"
#include "tests/searcher/service/experiment_client.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

class ExperimentServerTest : public testing::Test {
 protected:
  ExperimentServerTest() {
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

  void ExpectServed(const ExperimentServer& server) const {
    ExperimentClient client = ExperimentClient::Connect(server.address(), server.key());
    EXPECT_EQ(client.GetExperiment(id_).state, "active");
  }

  std::string database() const { return folder_.path() + "/dsat.db"; }

  TempFolder folder_;
  ExperimentId id_ = 0;
};

// A server at the default address, and its client.
class ServedTest : public ExperimentServerTest {
 protected:
  const ExperimentServer server_{database(), ""};
  ExperimentClient client_ = ExperimentClient::Connect(server_.address(), server_.key());
};

TEST_F(ServedTest, AClientDrivesASearchToItsEnd) {
  Search reference(Spec());  // The same search in this process must ask for the same trials.
  bool finished = false;
  int64_t told = 0;
  while (!finished) {
    const ExperimentClient::Asked asked = client_.Ask(id_);
    const std::optional<Trial> expected = reference.Ask();
    ASSERT_EQ(asked.trial.has_value(), expected.has_value());
    if (!asked.trial) break;
    EXPECT_EQ(asked.trial->id, expected->id);
    EXPECT_EQ(asked.trial->kind, expected->kind);
    EXPECT_EQ(asked.trial->assignment, expected->assignment);
    EXPECT_EQ(asked.trial->ds_config, expected->ds_config);
    const Measurement measured = Measured(*asked.trial);
    finished = client_.Tell(id_, asked.trial->id, {TrialState::kSucceeded, ""}, measured, {});
    reference.Tell(expected->id, {TrialState::kSucceeded, ""}, {{{1, 1}, measured}}, {});
    EXPECT_EQ(finished, reference.Finished());
    ++told;
  }
  EXPECT_GT(told, 1);
  EXPECT_TRUE(client_.Ask(id_).finished);
  EXPECT_FALSE(client_.Ask(id_).trial.has_value());

  const ExperimentClient::View view = client_.GetExperiment(id_);
  EXPECT_EQ(view.state, "completed");
  EXPECT_EQ(view.best_trial, reference.Best());
  ASSERT_EQ(view.trials.size(), static_cast<size_t>(told));
  EXPECT_EQ(view.trials.back().state, TrialState::kSucceeded);
  EXPECT_EQ(MetricValue(view.trials.back(), "throughput"),
            Measured(view.trials.back()).at("throughput").value);
  EXPECT_EQ(Json::parse(view.spec_json).at("name"), "served");
}

TEST_F(ServedTest, CallsThatCannotBeAreRefusedAndChangeNothing) {
  EXPECT_EQ(CodeOf([&] { client_.Ask(99); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { client_.GetExperiment(99); }), ErrorCode::kNotFound);
  const TrialId trial = client_.Ask(id_).trial.value().id;
  const auto tell = [&](TrialId told, TrialState state, const Measurement& measurement) {
    const std::string reason = state == TrialState::kSucceeded ? "" : "why";
    return CodeOf([&] { client_.Tell(id_, told, {state, reason}, measurement, std::nullopt); });
  };
  const Measurement good = {{"throughput", {1, 0, 1}}};
  EXPECT_EQ(tell(trial, TrialState::kSucceeded, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(trial, TrialState::kRunning, good), ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(trial, TrialState::kSucceeded, {{"latency", {1, 0, 1}}}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(trial, TrialState::kSucceeded, {{"throughput", {-1, 0, 1}}}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(trial + 5, TrialState::kFailed, {}), ErrorCode::kNotFound);
  EXPECT_EQ(client_.GetExperiment(id_).trials.at(0).state, TrialState::kRunning);
  EXPECT_EQ(tell(trial, TrialState::kInfeasible, {}), std::nullopt);
  EXPECT_EQ(tell(trial, TrialState::kInfeasible, {}), ErrorCode::kFailedPrecondition);
  const Trial told = client_.GetExperiment(id_).trials.at(0);
  EXPECT_EQ(told.state, TrialState::kInfeasible);
  EXPECT_EQ(told.reason, "why");
}

TEST_F(ExperimentServerTest, TwoServersOfOneDatabaseFollowEachOther) {
  const ExperimentServer one(database(), "");
  const ExperimentServer two(database(), "127.0.0.1:0");
  ExperimentClient first = ExperimentClient::Connect(one.address(), one.key());
  ExperimentClient second = ExperimentClient::Connect(two.address(), two.key());
  std::set<TrialId> ids;
  for (int round = 0; round < 2; ++round) {
    const Trial a = first.Ask(id_).trial.value();
    const Trial b = second.Ask(id_).trial.value();
    ids.insert({a.id, b.id});
    // The result of each trial is told through the other client.
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
      ExperimentClient client = ExperimentClient::Connect(server.address(), server.key());
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

// Eight calls wait for decisions that compare 200,000 configurations by ten measurements.
TEST_F(ExperimentServerTest, LongDecisionsOfOneExperimentDelayNoOther) {
  constexpr int kCalls = 8;
  ExperimentId slow_id = 0;
  {
    Store store = Store::Open(database(), Store::Mode::kReadWrite);
    ExperimentSpec slow = Spec();
    slow.method = "auto";
    slow.options.max_trials = 64;
    Json values = Json::array();
    for (int i = 0; i < 24; ++i)
      values.push_back(i);
    for (const char* key : {"/a", "/b", "/c", "/d"})
      slow.search_space[key] = values;
    Experiment experiment = Experiment::Create(store, slow);
    slow_id = experiment.id();
    for (int i = 0; i < 10; ++i) {
      const Trial trial = *experiment.Ask();
      experiment.TellExternal(trial.id, {TrialState::kSucceeded, ""},
                              {{ConfigPoint(trial), Measured(trial)}}, {});
    }
  }
  const ExperimentServer server(database(), "");
  std::atomic<int> num_answered = 0;
  std::vector<std::jthread> callers;
  for (int i = 0; i < kCalls; ++i) {
    callers.emplace_back([&] {
      EXPECT_TRUE(ExperimentClient::Connect(server.address(), server.key()).Ask(slow_id).trial);
      ++num_answered;
    });
  }
  while (num_answered == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ExperimentClient client = ExperimentClient::Connect(server.address(), server.key());
  const Trial trial = client.Ask(id_).trial.value();
  client.Tell(id_, trial.id, {TrialState::kSucceeded, ""}, Measured(trial), {});
  EXPECT_LT(num_answered, kCalls);
  EXPECT_EQ(client.GetExperiment(slow_id).state, "active");
}

TEST_F(ServedTest, AReasonIsALineAndNoLog) {
  const TrialId trial = client_.Ask(id_).trial->id;
  const std::string log(5000, 'x');
  EXPECT_EQ(CodeOf([&] {
              client_.Tell(id_, trial, {TrialState::kFailed, log}, {}, {});
            }),
            ErrorCode::kInvalidArgument);
  client_.Tell(id_, trial, {TrialState::kFailed, "it crashed"}, {}, {});
}

TEST_F(ExperimentServerTest, APortOfThisMachineIsFoundAndKeptAlone) {
  const ExperimentServer server(database(), "127.0.0.1:0");
  EXPECT_TRUE(server.address().starts_with("127.0.0.1:"));
  EXPECT_NE(server.address(), "127.0.0.1:0");
  EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), server.address()); }),
            ErrorCode::kAlreadyExists);
  ExpectServed(server);
}

TEST_F(ExperimentServerTest, AddressesThatAreNoneAreRefused) {
  for (const std::string& address :
       std::vector<std::string>{"unix:relative", "unix-abstract:name", "80", ":80", "host",
                                "host:", "host:65536", "unix:/" + std::string(107, 'x')}) {
    EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), address); }), ErrorCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), "192.0.2.1:0"); }), ErrorCode::kUnavailable);
}

TEST_F(ExperimentServerTest, ASocketOfALivingServerIsNotTaken) {
  const std::string address = "unix:" + folder_.path() + "/socket";
  const ExperimentServer server(database(), address);
  EXPECT_EQ(CodeOf([&] { ExperimentServer(database(), address); }), ErrorCode::kAlreadyExists);
  ExpectServed(server);
}

// While another process writes, calls wait; those that their clients give up ask for nothing.
TEST_F(ExperimentServerTest, ACallThatWasGivenUpGetsNoTrial) {
  const ExperimentServer server(database(), "");
  {
    Database other =
        Database::Open(database(), Database::Access::kReadWrite, std::chrono::milliseconds(1000));
    other.Execute("BEGIN IMMEDIATE");
    std::vector<std::jthread> clients;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&] {
        const auto stub = v1::ExperimentService::NewStub(
            grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
        v1::AskRequest request;
        request.set_experiment(id_);
        v1::AskReply reply;
        EXPECT_EQ(stub->Ask(&context, request, &reply).error_code(),
                  grpc::StatusCode::DEADLINE_EXCEEDED);
      });
    }
    clients.clear();
    // The server hears of each end a moment later.
    std::this_thread::sleep_for(std::chrono::milliseconds(2000));
    other.Execute("ROLLBACK");
  }
  ExperimentClient client = ExperimentClient::Connect(server.address(), server.key());
  // One call was at work when its client gave up.
  EXPECT_LE(client.GetExperiment(id_).trials.size(), 1u);
}

TEST_F(ServedTest, WhatASearchOfDsatRunsIsNotServed) {
  ASSERT_TRUE(client_.Ask(id_).trial);
  const RunnerLock runner = RunnerLock::Acquire(database(), id_);
  EXPECT_EQ(CodeOf([&] { client_.Ask(id_); }), ErrorCode::kFailedPrecondition);
}

TEST_F(ServedTest, ASpeedOfZeroAndAReasonOfASuccessAreRefused) {
  const Trial trial = client_.Ask(id_).trial.value();
  const auto tell = [&](double throughput, const std::string& reason) {
    return CodeOf([&] {
      client_.Tell(id_, trial.id, {TrialState::kSucceeded, reason},
                   {{"throughput", {throughput, 0, 1}}}, {});
    });
  };
  EXPECT_EQ(tell(0, ""), ErrorCode::kInvalidArgument);
  EXPECT_EQ(tell(5, "why"), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(
      client_.Tell(id_, trial.id, {TrialState::kSucceeded, ""}, {{"throughput", {5, 0, 1}}}, {}));
}

TEST_F(ExperimentServerTest, ASocketFileBelongsToThisUserAlone) {
  const std::string path = folder_.path() + "/socket";
  const ExperimentServer server(database(), "unix:" + path);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
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
  ExpectServed(server);
}

TEST_F(ExperimentServerTest, AServerThatEndsLeavesTheSocketOfAnotherOne) {
  const std::string address = "unix:" + folder_.path() + "/socket";
  auto first = std::make_unique<ExperimentServer>(database(), address);
  fs::remove(folder_.path() + "/socket");
  const ExperimentServer second(database(), address);
  first.reset();
  ExpectServed(second);
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
