// Strangers and hostile clients at a running `dsat serve`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "db/sqlite.h"
#include "db/store.h"
#include "searcher/search/experiment.h"
#include "tests/base/error_code.h"
#include "tests/build_folder.h"
#include "tests/cli/run_dsat.h"
#include "tests/sanitizers.h"
#include "tests/searcher/service/experiment_client.h"
#include "tests/searcher/service/raw_client.h"

namespace dsat {
namespace {

using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

constexpr std::chrono::seconds kAttack{3};

// The header block of a call of GetExperiment.
std::string CallHeaders() {
  const std::string path = "/dsat.v1.ExperimentService/GetExperiment";
  const auto text = [](const std::string& word) {
    return static_cast<char>(word.size()) + word;  // Not compressed.
  };
  return std::string("\x83\x86\x04", 3) + text(path) + "\x01" + text("dsat") + '\0' + text("te") +
         text("trailers") + '\0' + text("content-type") + text("application/grpc");
}

class DoorTest : public testing::Test {
 protected:
  DoorTest() {
    signal(SIGPIPE, SIG_IGN);
    ExperimentSpec spec;
    spec.name = "served";
    spec.method = "random";
    spec.entrypoint = {"builtin"};
    spec.ds_config = {{"train_micro_batch_size_per_gpu", 1}, {"zero_optimization", {{"stage", 1}}}};
    spec.profile = ModelProfile{1000000, 1000000, 1 << 20, int64_t{1} << 28, 1000000};
    Store store = Store::Open(workspace_.Path("dsat.db"), Store::Mode::kCreate);
    id_ = Experiment::Create(store, spec).id();
  }
  ~DoorTest() override { Stop(); }

  void Serve(const std::string& listen) {
    std::vector<std::string> args = {"serve", "--json", "--db", "dsat.db"};
    if (!listen.empty()) args.insert(args.end(), {"--listen", listen});
    log_ = fmt::format("serve{}", num_served_++);
    pid_ = workspace_.StartDsat(args, log_);
    ASSERT_TRUE(workspace_.WaitUntilSaid(log_ + ".out", "\n"));
    const Json said = ReadJsonFile(workspace_.Path(log_ + ".out"));
    address_ = said.at("address");
    key_path_ = said.at("key");
    if (!key_path_.empty()) key_ = ReadFile(key_path_);
  }

  // Ends the server; how long that takes.
  Clock::duration Stop() {
    const Clock::time_point begin = Clock::now();
    if (pid_ > 0) {
      kill(pid_, SIGTERM);
      EXPECT_EQ(WaitFor(pid_), 0);
    }
    pid_ = -1;
    return Clock::now() - begin;
  }

  // A number of /proc/PID/status: VmRSS in KiB, Threads.
  int64_t Status(const std::string& name) const {
    const std::string status = ReadFile("/proc/" + std::to_string(pid_) + "/status");
    return std::stoll(status.substr(status.find(name + ":") + name.size() + 1));
  }

  // Repeats `attack` from `attackers` threads while another client calls the server, and says what
  // that costs.
  struct Cost {
    int64_t memory_mib = 0, threads = 0;
    double answer_s = 0;  // The longest wait for an answer.
  };
  Cost Attack(int attackers, const std::function<void()>& attack) {
    ExperimentClient lawful = ExperimentClient::Connect(address_, key_);
    EXPECT_EQ(lawful.GetExperiment(id_).state, "active");
    const int64_t memory = Status("VmRSS"), threads = Status("Threads");
    const Clock::time_point end = Clock::now() + kAttack;
    std::vector<std::jthread> running;
    for (int i = 0; i < attackers; ++i) {
      running.emplace_back([&] {
        while (Clock::now() < end)
          attack();
      });
    }
    Cost cost;
    while (Clock::now() < end) {
      const Clock::time_point asked = Clock::now();
      // A new client, which must get in, and one that is in.
      ExperimentClient late = ExperimentClient::Connect(address_, key_);
      EXPECT_EQ(late.GetExperiment(id_).state, "active");
      EXPECT_EQ(lawful.GetExperiment(id_).state, "active");
      const std::chrono::duration<double> waited = Clock::now() - asked;
      cost.answer_s = std::max(cost.answer_s, waited.count());
      cost.memory_mib = std::max(cost.memory_mib, (Status("VmRSS") - memory) / 1024);
      cost.threads = std::max(cost.threads, Status("Threads") - threads);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    fmt::print("{} MiB, {} threads, {:.2f} s\n", cost.memory_mib, cost.threads, cost.answer_s);
    return cost;
  }

  void ExpectSmall(const Cost& cost, int64_t most_mib) {
    // AddressSanitizer keeps freed memory.
    EXPECT_TRUE(IsSanitized() || cost.memory_mib <= most_mib) << cost.memory_mib << " MiB";
    EXPECT_LE(cost.threads, 16);
    EXPECT_LT(cost.answer_s, 5);  // A busy machine; 0.1 s otherwise.
  }

  // Expects that the attack of a client with the key stays cheap, also for those that hold
  // connections, and that the server ends in time with `held` clients connected.
  void ExpectBearable(int attackers, const std::function<void(RawClient&)>& attack) {
    const Cost cost = Attack(attackers, [&] {
      RawClient client(address_, key_);
      if (client.Begin()) attack(client);
    });
    ExpectSmall(cost, 256);
    EXPECT_EQ(ReadFile(workspace_.Path(log_ + ".err")), "");
    EXPECT_LT(Stop(), std::chrono::seconds(4));  // 2 s on a machine that is not busy.
  }

  Workspace workspace_;
  ExperimentId id_ = 0;
  pid_t pid_ = -1;
  int num_served_ = 0;
  std::string log_, address_, key_path_, key_;
};

// The attacks of a client that is let in.

// A header block that does not end.
void ContinueHeaders(RawClient& client) {
  const std::string part(16384, '\x82');
  for (bool sent = client.Send(Http2Frame(kHeaders, 0, 1, CallHeaders())); sent;)
    sent = client.Send(Http2Frame(kContinuation, 0, 1, part));
}

// Calls that are given up at once.
void Reset(RawClient& client) {
  const Clock::time_point end = Clock::now() + std::chrono::seconds(2);
  for (uint32_t call = 1; Clock::now() < end; call += 2) {
    const std::string frames = Http2Frame(kHeaders, kEndHeaders, call, CallHeaders()) +
                               Http2Frame(kReset, 0, call, std::string("\0\0\0\x08", 4));
    if (!client.Send(frames)) return;
    while (client.HasBytes())
      if (client.Receive().empty()) return;
  }
}

// 50 messages of 4 MiB that do not end.
void BeginMessages(RawClient& client) {
  const std::string part(16000, 0);
  for (uint32_t call = 1; call < 100; call += 2) {
    const std::string message = std::string("\0\0\x40\0\0", 5) + part;
    client.Send(Http2Frame(kHeaders, kEndHeaders, call, CallHeaders()) +
                Http2Frame(kData, 0, call, message));
  }
  for (int i = 0; i < 4000; ++i) {
    if (!client.Send(Http2Frame(kData, 0, 1 + 2 * static_cast<uint32_t>(i % 50), part))) return;
    while (client.HasBytes())
      if (client.Receive().empty()) return;
  }
}

// Calls that stay open.
void OpenCalls(RawClient& client) {
  for (uint32_t call = 1; client.Send(Http2Frame(kHeaders, kEndHeaders, call, CallHeaders()));)
    call += 2;
}

// The same, but it leaves before that breaks a limit.
void OpenCallsAndLeave(RawClient& client) {
  std::string frames;
  for (uint32_t call = 1; call < 60; call += 2)
    frames += Http2Frame(kHeaders, kEndHeaders, call, CallHeaders());
  client.Send(frames);
}

// A header of which 1 GiB is announced.
void AnnounceString(RawClient& client) {
  const std::string announced("\0\x01x\x7f\x81\xff\xff\xff\x03", 9);
  const std::string part(16384, 'a');
  bool sent = client.Send(Http2Frame(kHeaders, 0, 1, announced));
  for (int i = 0; sent && i < 400; ++i)
    sent = client.Send(Http2Frame(kContinuation, 0, 1, part));
}

struct HostileClient {
  const char* name;
  int number;
  void (*attack)(RawClient&);
};
class HostileClientTest : public DoorTest, public testing::WithParamInterface<HostileClient> {};

INSTANTIATE_TEST_SUITE_P(
    , HostileClientTest,
    testing::Values(HostileClient{"WithAnEndlessHeaderBlock", 2, ContinueHeaders},
                    HostileClient{"ThatGivesUpItsCallsAtOnce", 4, Reset},
                    HostileClient{"WithUnfinishedMessages", 20, BeginMessages},
                    HostileClient{"ThatKeepsCallsOpen", 4, OpenCalls},
                    HostileClient{"ThatOpensCallsAndLeaves", 4, OpenCallsAndLeave},
                    HostileClient{"WithAGiantHeader", 4, AnnounceString}),
    [](const auto& client) { return client.param.name; });

TEST_P(HostileClientTest, IsBearable) {
  Serve("127.0.0.1:0");
  ExpectBearable(GetParam().number, GetParam().attack);
}

// The same on this machine, where every program of this user is let in.
TEST_F(DoorTest, AFaultyProgramOfThisUserIsBearable) {
  Serve("");
  EXPECT_EQ(key_path_, "");
  ExpectBearable(8, [](RawClient& client) {
    static std::atomic<int> turn = 0;
    switch (turn++ % 4) {
      case 0:
        return ContinueHeaders(client);
      case 1:
        return BeginMessages(client);
      case 2:
        return OpenCalls(client);
      default:
        return AnnounceString(client);
    }
  });
}

TEST_F(DoorTest, AStrangerEndsInTheHandshake) {
  Serve("127.0.0.1:0");
  std::vector<std::unique_ptr<RawClient>> held;
  std::mutex mutex;
  std::atomic<int> turn = 0;
  const Cost cost = Attack(4, [&] {
    const int way = turn++ % 4;
    // Without TLS, with TLS but without a key, as a server that only listens, and saying nothing.
    auto client = std::make_unique<RawClient>(address_, way == 1 ? "no key" : "");
    if (way == 0 && client->Begin()) ContinueHeaders(*client);
    if (way == 1) {
      EXPECT_TRUE(!client->Begin() || client->Receive().empty());
    }
    if (way == 2) client->Send("\x16\x03\x01\x3f\xff");
    const std::lock_guard lock(mutex);
    held.push_back(std::move(client));
    if (held.size() > 1000) held.erase(held.begin(), held.begin() + 500);
  });
  ExpectSmall(cost, 64);
  EXPECT_EQ(ReadFile(workspace_.Path(log_ + ".err")), "");
  EXPECT_LT(Stop(), std::chrono::seconds(4));
}

TEST_F(DoorTest, TheKeyIsForThisUserAndForThisRun) {
  Serve("127.0.0.1:0");
  struct stat info {};
  ASSERT_EQ(stat(key_path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const std::string old = key_, path = key_path_;
  Stop();
  EXPECT_NE(stat(path.c_str(), &info), 0);
  Serve("127.0.0.1:0");
  ExperimentClient stranger = ExperimentClient::Connect(address_, old);
  EXPECT_EQ(CodeOf([&] { stranger.Ask(id_); }), ErrorCode::kUnavailable);
  ExperimentClient no_key = ExperimentClient::Connect(address_, "");
  EXPECT_EQ(CodeOf([&] { no_key.Ask(id_); }), ErrorCode::kUnavailable);
  ExperimentClient client = ExperimentClient::Connect(address_, key_);
  EXPECT_TRUE(client.Ask(id_).trial);
}

TEST_F(DoorTest, DoctorSaysWhatListens) {
  const auto listening = [this] {
    std::vector<std::string> found;
    const Json said = Json::parse(workspace_.Dsat({"doctor", "--json"}).out);
    for (const Json& port : said.at("listening"))
      if (port.at("pid") == pid_)
        found.push_back(fmt::format("127.0.0.1:{}", port.at("port").dump()));
    return found;
  };
  Serve("");
  EXPECT_THAT(listening(), testing::IsEmpty());
  Stop();
  Serve("127.0.0.1:0");
  EXPECT_THAT(listening(), testing::ElementsAre(address_));
  const std::string said = workspace_.Dsat({"doctor"}).out;
  EXPECT_THAT(said, HasSubstr(fmt::format("dsat (process {}) listens at port ", pid_)));
}

TEST_F(DoorTest, WithoutThreadsItEndsWithOneLine) {
  if (IsSanitized()) GTEST_SKIP() << "a sanitizer needs address space";
  const std::string error = workspace_.Path("error");
  const std::string command = fmt::format("ulimit -v 100000; {}/dsat serve --db {} 2>{}",
                                          BuildFolder(), workspace_.Path("dsat.db"), error);
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_THAT(ReadFile(error), testing::StartsWith("dsat: cannot start a thread: "));
  EXPECT_EQ(CountLines(ReadFile(error)), 1);
}

// As docs/ask-tell.md shows it. The bytes are messages that name experiment 1.
TEST_F(DoorTest, ClientsInPythonComeInWithTheKeyFile) {
  if (!HasPackage("grpc")) GTEST_SKIP() << "DSAT_TEST_PYTHON has no grpcio";
  Serve("localhost:0");
  workspace_.Write("client.py", R"(
import sys, grpc
key = open(sys.argv[2], "rb").read()
channel = grpc.secure_channel(
    sys.argv[1], grpc.ssl_channel_credentials(key, key, key),
    options=[("grpc.ssl_target_name_override", "dsat")])
call = channel.unary_unary("/dsat.v1.ExperimentService/GetExperiment")
assert b"active" in call(b"\x08\x01", timeout=30)
)");
  const std::string command =
      fmt::format("{} {} {} {}", Python(), workspace_.Path("client.py"), address_, key_path_);
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(DoorTest, ACallThatTakesLongDoesNotDelayTheEnd) {
  Serve("");
  Database other = Database::Open(workspace_.Path("dsat.db"), Database::Access::kReadWrite,
                                  std::chrono::milliseconds(1000));
  other.Execute("BEGIN IMMEDIATE");
  std::jthread client([this] {
    ExperimentClient waits = ExperimentClient::Connect(address_, key_);
    EXPECT_THROW(waits.Ask(id_), Error);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(Stop(), std::chrono::seconds(4));
  other.Execute("ROLLBACK");
}

}  // namespace
}  // namespace dsat
