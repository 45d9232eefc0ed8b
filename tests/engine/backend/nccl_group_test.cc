// Tests what the NCCL group says when a call goes wrong, and when NCCL cannot be used. That its
// results are those of the contract is process_group_test_over_nccl's to show.
#include "engine/backend/cuda/nccl_group.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/base/error_code.h"
#include "tests/build_folder.h"
#include "tests/engine/comm/test_group.h"
#include "tests/engine/runtime/run_ranks.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// A function of the fake library: "FakeNcclLose", "FakeNcclFail".
void TellNccl(const char* what, int rank) {
  void* library = dlopen((BuildFolder() + "/libfake_nccl.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  reinterpret_cast<void (*)(int)>(dlsym(library, what))(rank);
}

// A python3 in PATH whose packages have the library.
TEST(NcclLibraryTest, IsFoundAmongPythonPackagesWhereTheLoaderHasNone) {
  nccl::Api api;
  if (nccl::Load(api).empty()) GTEST_SKIP() << "this machine has NCCL";
  namespace fs = std::filesystem;
  const TempFolder temporary;
  const fs::path root = temporary.path();
  const fs::path folder = root / "lib/python3.11/site-packages/nvidia/nccl/lib";
  fs::create_directories(folder);
  fs::create_directories(root / "bin");
  std::ofstream(root / "bin/python3") << "#!";
  fs::permissions(root / "bin/python3", fs::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (root / "bin").string().append(":" + path).c_str(), 1);
  EXPECT_THAT(nccl::Load(api), HasSubstr("nvidia/*/lib"));
  fs::create_symlink(BuildFolder() + "/libfake_nccl.so", folder / kNcclLibrary);
  EXPECT_EQ(nccl::Load(api), "");
  EXPECT_EQ(api.version, 22809);
  setenv("PATH", path.c_str(), 1);
}

// Runs fn on every rank of an NCCL group over host memory.
void RunNccl(int size, milliseconds timeout, const std::function<void(ProcessGroup& group)>& fn) {
  auto hosts = MakeRanks(size, timeout);
  RunThreads(size, [&](int rank) {
    SystemMemory memory;
    const auto group =
        MakeNcclGroup(std::move(hosts[static_cast<size_t>(rank)]), memory, HostNccl());
    fn(*group);
  });
}

TEST(NcclGroupTest, AnErrorOfNcclEndsTheCallOnEveryRank) {
  RunNccl(3, kTestTimeout, [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(3 * 4);
    group.AllReduce(buffer, DType::kF32, 1);
    if (group.rank() == 0) TellNccl("FakeNcclFail", 1);
    group.Barrier();
    const auto begin = std::chrono::steady_clock::now();
    const Error error = ErrorOf([&] { group.AllReduce(buffer, DType::kF32, 1); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kTestTimeout / 2);
    EXPECT_THAT(error.what(),
                HasSubstr(group.rank() == 1 ? "all_reduce(buffer 0, f32, rows of 1): NCCL: remote"
                                            : "has left the group"));
  });
}

TEST(NcclGroupTest, ALackOfMemoryInNcclIsTold) {
  RunNccl(2, kTestTimeout, [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(2 * 4);
    if (group.rank() == 0) TellNccl("FakeNcclLackMemory", 1);
    group.Barrier();
    const Error error = ErrorOf([&] { group.AllReduce(buffer, DType::kF32, 1); });
    if (group.rank() == 0) return;
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("NCCL: unhandled cuda error: Cuda failure 2 'out of "));
  });
}

TEST(NcclGroupTest, AfterAnErrorEveryCallIsRefused) {
  RunNccl(2, kTestTimeout, [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(2 * 4);
    group.Barrier();
    if (group.rank() == 1) return;
    EXPECT_THAT(ErrorOf([&] { group.AllGather(buffer, 4); }).what(), HasSubstr("rank 1"));
    const Error again = ErrorOf([&] { group.AllGather(buffer, 4); });
    EXPECT_EQ(again.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(again.what(), HasSubstr("failed before"));
  });
}

TEST(NcclGroupTest, WorkThatDoesNotEndIsAbortedAfterTheTimeout) {
  RunNccl(2, kShortTestTimeout, [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(2 * 4);
    if (group.rank() == 0) TellNccl("FakeNcclLose", 1);
    group.Barrier();
    const Error error = ErrorOf([&] { group.ReduceScatter(buffer, DType::kBF16, 2); });
    // The other rank may see first that this one has given up.
    if (error.code() != ErrorCode::kUnavailable) {
      EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
      EXPECT_THAT(error.what(), HasSubstr("reduce_scatter(buffer 0, bf16, rows of 2): not done "
                                          "within 3000 ms"));
    }
  });
}

TEST(NcclGroupTest, AMessageOfAPeerThatHasLeftIsAnErrorThatNamesIt) {
  RunNccl(2, kTestTimeout, [](ProcessGroup& group) {
    float number = 0;
    if (group.rank() == 1) return group.Send(&number, sizeof(number), 0);
    group.Recv(&number, sizeof(number), 1);
    const Error error = ErrorOf([&] { group.Recv(&number, sizeof(number), 1); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  });
}

TEST(NcclGroupTest, ASendEndsWhenThePeerReceives) {
  std::atomic<bool> has_sent = false;
  RunNccl(2, kTestTimeout, [&](ProcessGroup& group) {
    float number = 7;
    if (group.rank() == 0) {
      group.Send(&number, sizeof(number), 1);
      has_sent = true;
      return;
    }
    std::this_thread::sleep_for(milliseconds{100});
    EXPECT_FALSE(has_sent);
    number = 0;
    group.Recv(&number, sizeof(number), 0);
    EXPECT_EQ(number, 7);
  });
}

TEST(NcclGroupTest, MessagesThatDoNotMatchAreNamedInsteadOfAHang) {
  const auto expect_error = [](ProcessGroup& group, const std::function<void()>& call,
                               const std::string& rank_0, const std::string& rank_1) {
    const Error error = ErrorOf(call);
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_EQ(error.what(), fmt::format("ranks issued different calls: rank {} {}, rank {} {}",
                                        group.rank(), group.rank() == 0 ? rank_0 : rank_1,
                                        1 - group.rank(), group.rank() == 0 ? rank_1 : rank_0));
  };
  char data[20] = {}, other[20] = {};
  RunNccl(2, kTestTimeout, [&](ProcessGroup& group) {
    expect_error(
        group, [&] { group.Send(data, 20, 1 - group.rank()); }, "send(20 bytes to rank 1)",
        "send(20 bytes to rank 0)");
  });
  RunNccl(2, kTestTimeout, [&](ProcessGroup& group) {
    const auto call = [&] {
      group.rank() == 0 ? group.Send(data, 20, 1) : group.Recv(other, 19, 0);
    };
    expect_error(group, call, "send(20 bytes to rank 1)", "recv(19 bytes from rank 0)");
  });
  RunNccl(2, kTestTimeout, [&](ProcessGroup& group) {
    const auto call = [&] {
      group.rank() == 0 ? group.Send(data, 20, 1) : group.Exchange(data, other, 20, 0);
    };
    expect_error(group, call, "send(20 bytes to rank 1)", "exchange(20 bytes with rank 0)");
  });
}

// Rank 2 is nobody's concern.
TEST(NcclGroupTest, AMessageThatDoesNotEndIsAbortedAfterTheTimeout) {
  RunNccl(3, kShortTestTimeout, [](ProcessGroup& group) {
    if (group.rank() == 0) TellNccl("FakeNcclLose", 1);
    group.Barrier();
    if (group.rank() == 2) return;
    float number = 0, other = 0;
    const int peer = 1 - group.rank();
    const Error error = ErrorOf([&] { group.Exchange(&number, &other, sizeof(number), peer); });
    // The other rank may see first that this one has given up.
    if (error.code() != ErrorCode::kUnavailable) {
      EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("exchange(4 bytes with rank {}): not done "
                                                      "within 3000 ms",
                                                      peer)));
    }
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("rank 2")));
  });
}

// Host memory in blocks of at most so many bytes, which may deny that it holds anything.
class PickyMemory final : public MemorySource {
 public:
  PickyMemory(int64_t most_bytes, bool holds) : most_bytes_(most_bytes), holds_(holds) {}
  void* Allocate(int64_t bytes) override {
    return bytes > most_bytes_ ? nullptr : system_.Allocate(bytes);
  }
  void Free(void* block, int64_t bytes) override { system_.Free(block, bytes); }
  bool host_visible() const override { return true; }
  bool Holds(const void*) override { return holds_; }

 private:
  int64_t most_bytes_;
  bool holds_;
  SystemMemory system_;
};

TEST(NcclGroupTest, MessagesOfHostMemoryAreTheHostGroups) {
  RunRanks(2, [](ProcessGroup& host) {
    PickyMemory memory(INT64_MAX, /*holds=*/false);
    const auto group = MakeNcclGroup(host.Split(std::vector<int>{0, 0}), memory, HostNccl());
    const int peer = 1 - group->rank();
    const auto mine = static_cast<float>(group->rank());
    float number = -1;
    group->Send(&mine, sizeof(mine), peer);  // And does not wait.
    group->Recv(&number, sizeof(number), peer);
    EXPECT_EQ(number, 1 - mine);
    group->Exchange(&number, &number, 0, peer);
    EXPECT_EQ(group->traffic(), (Traffic{.sent_bytes = 4, .num_messages = 2}));
  });
}

TEST(NcclGroupTest, DifferentCallsAreNamedInsteadOfAHang) {
  RunNccl(2, kTestTimeout, [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(2 * 4);
    const Error error = ErrorOf([&] {
      group.rank() == 0 ? group.AllReduce(buffer, DType::kF32, 1) : group.AllGather(buffer, 4);
    });
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 all_reduce(buffer 0, f32, rows of 1), rank 1 "
                                        "all_gather(buffer 0, rows of 4 bytes)"));
  });
}

TEST(NcclGroupTest, MemoryThatOneRankLacksIsRefusedOnAllAndTheGroupGoesOn) {
  RunRanks(2, [](ProcessGroup& host) {
    SystemMemory plenty;
    PickyMemory little(4096, /*holds=*/true);
    MemorySource& memory =
        host.rank() == 0 ? static_cast<MemorySource&>(plenty) : static_cast<MemorySource&>(little);
    const auto group = MakeNcclGroup(host.Split(std::vector<int>{0, 0}), memory, HostNccl());
    EXPECT_EQ(ErrorOf([&] { group->Allocate(8192); }).code(), ErrorCode::kResourceExhausted);
    const CommBuffer buffer = group->Allocate(2 * 4);
    static_cast<float*>(buffer.data)[0] = 3;
    group->AllReduce(buffer, DType::kF32, 1);
    EXPECT_EQ(static_cast<float*>(buffer.data)[0], 6);
  });
}

TEST(NcclGroupTest, OneGpuPerRankAndNcclOnEachAreWantedOrTheReasonIsGiven) {
  RunRanks(3, [](ProcessGroup& host) {
    const int rank = host.rank();
    const std::string own = fmt::format("0000:{}b:00.0", rank);
    EXPECT_EQ(WhyNoNccl(host, "one", own, ""), "");
    EXPECT_EQ(WhyNoNccl(host, "one", rank == 1 ? "0000:1b:00.0" : "0000:3b:00.0", ""),
              "ranks 0 and 2 share GPU 0000:3b:00.0, which NCCL refuses");
    const std::string missing = rank == 2 ? "libnccl.so.2: no such file" : "";
    EXPECT_EQ(WhyNoNccl(host, "one", own, missing),
              rank == 2 ? "rank 2 cannot load NCCL: libnccl.so.2: no such file"
                        : "rank 2 cannot load NCCL");
  });
}

TEST(NcclGroupTest, GpusOfTwoMachinesMayHaveOneAddress) {
  RunRanks(3, [](ProcessGroup& host) {
    const std::string gpu = host.rank() == 1 ? "0000:1b:00.0" : "0000:3b:00.0";
    EXPECT_EQ(WhyNoNccl(host, host.rank() == 2 ? "other" : "one", gpu, ""), "");
  });
}

TEST(NcclGroupTest, NcclHostidSaysWhichMachineThisIs) {
  unsetenv("NCCL_HOSTID");
  const std::string machine = NcclMachine();
  EXPECT_EQ(machine.size(), 36);  // A UUID has so many characters.
  EXPECT_EQ(NcclMachine(), machine);
  setenv("NCCL_HOSTID", "host-7", 1);
  EXPECT_EQ(NcclMachine(), "host-7");
  unsetenv("NCCL_HOSTID");
}

}  // namespace
}  // namespace dsat::engine
