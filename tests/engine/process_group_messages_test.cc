// Point to point and subgroups, between threads and between processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "engine/comm/process_group.h"
#include "tests/engine/run_ranks.h"
#include "tests/engine/test_group.h"

namespace dsat::engine {
namespace {

using testing::ElementsAre;

// What `sender` sends as its `number`th message of so many bytes.
std::vector<char> Message(int sender, int number, int64_t bytes) {
  std::vector<char> message(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i)
    message[static_cast<size_t>(i)] = static_cast<char>(sender * 50 + number * 7 + i % 251);
  return message;
}

void SendMessage(ProcessGroup& group, int number, int64_t bytes, int peer) {
  group.Send(Message(group.rank(), number, bytes).data(), bytes, peer);
}

void ExpectMessage(ProcessGroup& group, int number, int64_t bytes, int peer) {
  std::vector<char> received(static_cast<size_t>(bytes));
  group.Recv(received.data(), bytes, peer);
  ASSERT_EQ(received, Message(peer, number, bytes)) << "message " << number << " of " << bytes;
}

// Nothing, below and at a page, a chunk of 256 KiB and its neighbours, many chunks; then smaller.
constexpr int64_t kSizes[] = {0,         1,         4096, 4097, (256 << 10) - 1,
                              256 << 10, 3'000'001, 5,    0,    70'000};

TEST(MessagesTest, ArriveInOrderWhateverTheirSize) {
  RunGroups(2, [](ProcessGroup& group) {
    for (int number = 0; number < static_cast<int>(std::size(kSizes)); ++number) {
      if (group.rank() == 0) {
        SendMessage(group, number, kSizes[number], 1);
      } else {
        ExpectMessage(group, number, kSizes[number], 0);
      }
    }
  });
}

TEST(MessagesTest, BothRanksMaySendBeforeTheyReceive) {
  RunGroups(2, [](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    for (int number = 0; number < static_cast<int>(std::size(kSizes)); ++number) {
      SendMessage(group, number, kSizes[number], peer);
      ExpectMessage(group, number, kSizes[number], peer);
    }
  });
}

TEST(MessagesTest, EveryPairOfRanksHasItsOwnOrder) {
  RunGroups(4, [](ProcessGroup& group) {
    for (int number = 0; number < 20; ++number) {
      for (int peer = 0; peer < group.size(); ++peer) {
        if (peer != group.rank()) SendMessage(group, number, 1000 + 100 * number, peer);
      }
      for (int peer = group.size() - 1; peer >= 0; --peer) {
        if (peer != group.rank()) ExpectMessage(group, number, 1000 + 100 * number, peer);
      }
    }
  });
}

// The order of a pipeline of `size` stages, one forward and one backward in turn: rank r warms up
// with size - 1 - r forwards.
void RunOneForwardOneBackward(ProcessGroup& group, int num_micro_batches, int64_t bytes) {
  const bool first = group.rank() == 0;
  const bool last = group.rank() == group.size() - 1;
  const auto forward = [&](int micro_batch) {
    if (!first) ExpectMessage(group, micro_batch, bytes, group.rank() - 1);
    if (!last) SendMessage(group, micro_batch, bytes, group.rank() + 1);
  };
  const auto backward = [&](int micro_batch) {
    if (!last) ExpectMessage(group, micro_batch, bytes, group.rank() + 1);
    if (!first) SendMessage(group, micro_batch, bytes, group.rank() - 1);
  };
  const int num_warm_up = std::min(num_micro_batches, group.size() - 1 - group.rank());
  for (int i = 0; i < num_warm_up; ++i)
    forward(i);
  for (int i = num_warm_up; i < num_micro_batches; ++i) {
    forward(i);
    backward(i - num_warm_up);
  }
  for (int i = num_micro_batches - num_warm_up; i < num_micro_batches; ++i)
    backward(i);
}

TEST(MessagesTest, OneForwardOneBackwardDoesNotDeadlock) {
  RunGroups(4, [](ProcessGroup& group) {
    for (const int num_micro_batches : {1, 3, 8})
      RunOneForwardOneBackward(group, num_micro_batches, 300'000);
  });
}

TEST(MessagesTest, MixWithCollectives) {
  RunGroups(3, [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(3 * 4);
    for (int round = 0; round < 50; ++round) {
      SendMessage(group, round, 500, (group.rank() + 1) % 3);
      EXPECT_EQ(group.SumScalar(1), 3);  // With a message on its way on every rank.
      ExpectMessage(group, round, 500, (group.rank() + 2) % 3);
      group.AllReduce(buffer, DType::kF32, 1);
    }
  });
}

TEST(MessagesTest, WhatWasSentBeforeTheSenderLeftIsReceived) {
  RunGroups(2, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      SendMessage(group, 0, 1'000'000, 1);
      return;
    }
    usleep(100'000);
    ExpectMessage(group, 0, 1'000'000, 0);
  });
}

TEST(MessagesTest, PassBetweenProcesses) {
  const UniqueFd file = MakeMemoryFile();
  const auto check = [&](int rank) {
    const auto group = MakeShmGroup(file.get(), rank, 2, kTestTimeout);
    for (int number = 0; number < 30; ++number) {
      SendMessage(*group, number, 600'000 + number, 1 - rank);
      ExpectMessage(*group, number, 600'000 + number, 1 - rank);
    }
    const auto same = group->Split(std::vector<int>{7, 7});
    SendMessage(*same, 1, 10, 1 - rank);
    ExpectMessage(*same, 1, 10, 1 - rank);
  };
  const pid_t child = fork();
  if (child == 0) {
    check(1);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  check(0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Sums 1 << rank-in-the-parent over the subgroup: its members as bits.
int MembersOf(ProcessGroup& subgroup, int rank_in_parent) {
  const CommBuffer buffer = subgroup.Allocate(subgroup.size() * 4);
  auto* data = static_cast<float*>(buffer.data);
  std::fill(data, data + subgroup.size(), static_cast<float>(1 << rank_in_parent));
  subgroup.AllReduce(buffer, DType::kF32, 1);
  return static_cast<int>(data[0]);
}

TEST(SplitTest, RanksOfOneColorFormAGroupInTheirOrder) {
  RunGroups(4, [](ProcessGroup& group) {
    const auto stage = group.Split(std::vector<int>{5, 3, 5, 3});
    EXPECT_EQ(stage->size(), 2);
    EXPECT_EQ(stage->rank(), group.rank() / 2);
    EXPECT_EQ(MembersOf(*stage, group.rank()), group.rank() % 2 == 0 ? 0b0101 : 0b1010);
    EXPECT_EQ(group.SumScalar(1), 4);  // The parent goes on.
  });
}

TEST(SplitTest, NegativeColorsHaveNoGroupAndLoneOnesMoveNothing) {
  RunGroups(4, [](ProcessGroup& group) {
    // Embeddings tied between the first and the last of four stages.
    const auto tied = group.Split(std::vector<int>{0, -1, 1, 0});
    if (group.rank() == 1) {
      EXPECT_EQ(tied, nullptr);
      return;
    }
    EXPECT_EQ(tied->size(), group.rank() == 2 ? 1 : 2);
    EXPECT_EQ(MembersOf(*tied, group.rank()), group.rank() == 2 ? 0b0100 : 0b1001);
  });
}

TEST(SplitTest, SubgroupsOfSubgroupsAllocateBesideEachOther) {
  RunGroups(4, [](ProcessGroup& group) {
    const auto pair = group.Split(std::vector<int>{0, 0, 1, 1});
    const auto both = pair->Split(std::vector<int>{0, 0});
    std::vector<CommBuffer> buffers;
    for (int round = 0; round < 20; ++round) {
      for (ProcessGroup* each : {&group, pair.get(), both.get()}) {
        // The pairs are not in step with each other.
        buffers.push_back(each->Allocate(5000 + 5000 * (group.rank() / 2) * (each != &group)));
        auto* data = static_cast<unsigned char*>(buffers.back().data);
        ASSERT_THAT(std::vector<int>(data, data + 3), ElementsAre(0, 0, 0));
        std::fill(data, data + buffers.back().bytes, buffers.size());
      }
    }
    group.Barrier();
    for (size_t i = 0; i < buffers.size(); ++i) {
      const auto* data = static_cast<const unsigned char*>(buffers[i].data);
      EXPECT_EQ(std::count(data, data + buffers[i].bytes, i + 1), buffers[i].bytes);
    }
  });
}

TEST(SplitTest, ASubgroupOutlivesItsParent) {
  const UniqueFd file = MakeMemoryFile();
  RunThreads(3, [&](int rank) {
    auto group = MakeShmGroup(file.get(), rank, 3, kTestTimeout);
    const auto subgroup = group->Split(std::vector<int>{1, 1, 1});
    group.reset();
    EXPECT_EQ(MembersOf(*subgroup, rank), 0b111);
  });
}

TEST(SplitTest, CountingGroupsSplitAlike) {
  const auto group = MakeCountingGroup(2, 4);
  const auto stage = group->Split(std::vector<int>{5, 3, 5, 3});
  EXPECT_EQ(stage->rank(), 1);
  EXPECT_EQ(stage->size(), 2);
  EXPECT_EQ(stage->Allocate(int64_t{1} << 40).data, nullptr);
  EXPECT_EQ(group->Split(std::vector<int>{0, 0, -1, 0}), nullptr);
}

}  // namespace
}  // namespace dsat::engine
