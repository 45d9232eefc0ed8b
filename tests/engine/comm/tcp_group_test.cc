// The process group of several hosts where it differs from that of one: its bits are the same, its
// messages wait in the network, its ranks meet at an address. The contract's own suites run over it
// as process_group_test_over_tcp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "engine/comm/process_group.h"
#include "tests/base/error_code.h"
#include "tests/engine/backend/kernels_testing.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/runtime/checkpoint/child.h"
#include "tests/engine/runtime/run_ranks.h"
#include "tests/sanitizers.h"

namespace dsat::engine {
namespace {

using testing::HasSubstr;

void RunTcp(int size, const std::function<void(ProcessGroup& group)>& fn) {
  const TcpPlace place;
  RunThreads(size, [&](int rank) { fn(*place.Join(rank, size, kTestTimeout)); });
}

// Numbers of either sign and several magnitudes, whose sum depends on the order.
std::vector<char> RandomNumbers(DType dtype, int64_t num_elems, int rank) {
  Rng rng(17, static_cast<uint64_t>(rank), "input");
  Doubles numbers;
  for (int64_t i = 0; i < num_elems; ++i)
    numbers.push_back((2 * rng.Uniform() - 1) * (1 << i % 7));
  return TestTensor(dtype, numbers).bytes();
}

// Both groups do `call` with the same numbers, the bytes of all rows; afterwards bytes [begin, end)
// are the same.
template <typename CallFn>
void ExpectSameBytes(ProcessGroup& a, ProcessGroup& b, const std::vector<char>& numbers,
                     int64_t begin, int64_t end, const CallFn& call) {
  std::vector<const char*> results;
  for (ProcessGroup* group : {&a, &b}) {
    const CommBuffer buffer = group->Allocate(std::ssize(numbers));
    std::copy(numbers.begin(), numbers.end(), static_cast<char*>(buffer.data));
    call(*group, buffer);
    results.push_back(static_cast<const char*>(buffer.data) + begin);
  }
  if (begin == end) return;
  EXPECT_EQ(std::memcmp(results[0], results[1], static_cast<size_t>(end - begin)), 0);
}

void ExpectSameBits(ProcessGroup& shm, ProcessGroup& tcp, DType dtype, int64_t row_elems) {
  const int64_t row_bytes = row_elems * BytesPerElem(dtype);
  const auto numbers = RandomNumbers(dtype, shm.size() * row_elems, shm.rank());
  const auto all = [&](const auto& call) {
    ExpectSameBytes(shm, tcp, numbers, 0, std::ssize(numbers), call);
  };
  using Group = ProcessGroup;
  using Buffer = const CommBuffer;
  all([&](Group& g, Buffer& b) { g.AllReduce(b, dtype, row_elems); });
  all([&](Group& g, Buffer& b) { g.AllGather(b, row_bytes); });
  all([&](Group& g, Buffer& b) { g.AllToAll(b, row_bytes); });
  all([&](Group& g, Buffer& b) { g.Broadcast(b, dtype, row_elems, g.size() - 1); });
  const int64_t own = shm.rank() * row_bytes;
  ExpectSameBytes(shm, tcp, numbers, own, own + row_bytes,
                  [&](Group& g, Buffer& b) { g.ReduceScatter(b, dtype, row_elems); });
  EXPECT_EQ(shm.traffic(), tcp.traffic());
}

// Rows below a tile of what is received, of several with a rest, and empty ones.
TEST(TcpGroupTest, GivesTheBitsOfSharedMemory) {
  for (const int size : {2, 3, 5}) {
    auto hosts = MakeThreadGroups(size, kTestTimeout);
    const TcpPlace place;
    RunThreads(size, [&](int rank) {
      const auto tcp = place.Join(rank, size, kTestTimeout);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const int64_t row_elems : {0, 13, 140'003})
          ExpectSameBits(*hosts[static_cast<size_t>(rank)], *tcp, dtype, row_elems);
      }
    });
  }
}

TEST(TcpGroupTest, BigMessagesCross) {
  RunTcp(3, [](ProcessGroup& group) {
    constexpr int64_t kBytes = 20'000'003;  // More than a connection holds.
    const std::vector<char> sent(kBytes, static_cast<char>('a' + group.rank()));
    std::vector<char> received(kBytes);
    for (const auto& [low, high] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{0, 2}}) {
      if (group.rank() != low && group.rank() != high) continue;
      const int peer = low + high - group.rank();
      group.Exchange(sent.data(), received.data(), kBytes, peer);
      EXPECT_EQ(received, std::vector<char>(kBytes, static_cast<char>('a' + peer)));
    }
  });
}

TEST(TcpGroupTest, ACollectiveDoesNotWaitForAMessageThatNobodyHasReceived) {
  RunTcp(2, [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(2 * 4'000'000);
    const std::vector<char> message(50'000, 'm');
    if (group.rank() == 0) group.Send(message.data(), 50'000, 1);
    group.AllReduce(buffer, DType::kF32, 1'000'000);
    std::vector<char> received(50'000);
    if (group.rank() == 1) group.Recv(received.data(), 50'000, 0);
    EXPECT_EQ(received == message, group.rank() == 1);
  });
}

TEST(TcpGroupTest, WhatWasSentBeforeTheSenderLeftIsReceived) {
  RunTcp(2, [](ProcessGroup& group) {
    std::vector<char> message(60'000, static_cast<char>('a' + group.rank()));
    group.Send(message.data(), 60'000, 1 - group.rank());  // Rank 0 does not read it.
    group.Barrier();
    if (group.rank() == 0) return group.Send(message.data(), 10'000, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    group.Recv(message.data(), 60'000, 0);
    EXPECT_EQ(std::count(message.begin(), message.end(), 'a'), 60'000);
    group.Recv(message.data(), 10'000, 0);
    EXPECT_THAT(ErrorOf([&] { group.Recv(message.data(), 1, 0); }).what(),
                HasSubstr("rank 1 in recv(1 bytes from rank 0): rank 0 (127.0.0.1, pid "));
  });
}

TEST(TcpGroupTest, WorksBetweenProcesses) {
  const TcpPlace place;
  const auto check = [&](int rank) {
    const auto group = place.Join(rank, 2, kTestTimeout);
    const CommBuffer buffer = group->Allocate(2 * 400'000);
    std::fill_n(static_cast<float*>(buffer.data), 200'000, static_cast<float>(1 + rank));
    group->AllReduce(buffer, DType::kF32, 100'000);
    EXPECT_EQ(std::count(static_cast<float*>(buffer.data),
                         static_cast<float*>(buffer.data) + 200'000, 3.0F),
              200'000);
    group->Barrier();
  };
  const Child child([&] { check(1); });
  check(0);
}

// The master's address is not the one by which the others reach each other.
TEST(TcpGroupTest, RanksMeetAcrossAddresses) {
  const TcpPlace place("127.0.0.2");
  RunThreads(3, [&](int rank) {
    const auto group = place.Join(rank, 3, kTestTimeout);
    EXPECT_EQ(group->SumScalar(1), 3);
    EXPECT_EQ(group->Split(std::vector<int>{0, 0, 0})->SumScalar(1), 3);
    group->Barrier();
    if (rank == 0) return;
    const Error error = ErrorOf([&] { group->SumScalar(1); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr(" has left the group"));
  });
}

TEST(TcpGroupTest, TheMasterMayHaveAName) {
  TcpGroupArgs args = TcpPlace().ArgsOf(0, 2, kTestTimeout);
  args.master_address = "localhost";
  args.listening_fd = -1;
  RunThreads(2, [&](int rank) {
    TcpGroupArgs own = args;
    own.rank = rank;
    // Rank 0 may come last.
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(MakeTcpGroup(own)->MaxScalar(rank), 1);
  });
  args.master_address = "no-such-host.invalid";
  EXPECT_THAT(ErrorOf([&] { (void)MakeTcpGroup(args); }).what(),
              HasSubstr("the address of \"no-such-host.invalid\""));
}

TEST(TcpGroupTest, OneRankNeedsNoPlace) {
  EXPECT_EQ(MakeTcpGroup(TcpGroupArgs())->SumScalar(3), 3);
}

TEST(TcpGroupTest, GroupsAreUsedByTwoThreadsAtOnce) {
  RunTcp(2, [](ProcessGroup& group) {
    const auto beside = group.Split(std::vector<int>{0, 0});
    const auto work = [](ProcessGroup& of_thread) {
      const CommBuffer buffer = of_thread.Allocate(2 * 400'000);
      for (int round = 0; round < 20; ++round) {
        std::fill_n(static_cast<float*>(buffer.data), 200'000, 1.0F);
        of_thread.AllReduce(buffer, DType::kF32, 100'000);
        ASSERT_EQ(static_cast<float*>(buffer.data)[199'999], 2);
      }
    };
    std::thread other([&] { work(*beside); });
    work(group);
    other.join();
  });
}

TEST(TcpGroupTest, WithoutSocketsASplitIsRefusedAndTheGroupGoesOn) {
  if (IsSanitized())
    GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a pipe to look at an exception";
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  RunTcp(2, [&](ProcessGroup& group) {
    const std::vector<int> colors{0, 0};
    const auto set_limit = [&](rlim_t number) {
      group.Barrier();
      const rlimit changed{number, limit.rlim_max};
      if (group.rank() == 0) {
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &changed), 0);
      }
      group.Barrier();
    };
    set_limit(3);
    const Error error = ErrorOf([&] { (void)group.Split(colors); });
    set_limit(limit.rlim_cur);
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("connections for subgroups: listening at 127.0.0.1:0"));
    EXPECT_EQ(group.Split(colors)->SumScalar(1), 2);
  });
}

}  // namespace
}  // namespace dsat::engine
