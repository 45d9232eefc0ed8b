// Point to point and subgroups, between threads and between processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "engine/comm/counting_group.h"
#include "engine/comm/process_group.h"
#include "engine/plan/schedule.h"
#include "tests/engine/comm/test_group.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

using testing::ElementsAre;

// The bytes that `sender` sends as its `number`th message.
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

void ExchangeMessages(ProcessGroup& group, int sent, int received, int64_t bytes, int peer) {
  std::vector<char> from_peer(static_cast<size_t>(bytes));
  group.Exchange(Message(group.rank(), sent, bytes).data(), from_peer.data(), bytes, peer);
  ASSERT_EQ(from_peer, Message(peer, received, bytes)) << "message " << received << " of " << bytes;
}

// Nothing, below and at a page, a chunk of 256 KiB and its neighbors, many chunks; then smaller.
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

TEST(MessagesTest, CrossInAnExchangeWhateverTheirSize) {
  RunGroups(2, [](ProcessGroup& group) {
    for (int number = 0; number < static_cast<int>(std::size(kSizes)); ++number)
      ExchangeMessages(group, number, number, kSizes[number], 1 - group.rank());
  });
}

TEST(MessagesTest, EveryPairOfRanksHasItsOwnOrder) {
  RunGroups(4, [](ProcessGroup& group) {
    for (int number = 0; number < 20; ++number) {
      const int64_t bytes = 1000 + 100 * number;
      for (int from = 0; from < group.size(); ++from) {
        for (int to = group.size() - 1; to >= 0; --to) {
          if (from != to && group.rank() == from) SendMessage(group, number, bytes, to);
          if (from != to && group.rank() == to) ExpectMessage(group, number, bytes, from);
        }
      }
    }
  });
}

// Each micro-batch's output and gradient is a message of its own.
int NumberOf(int micro_batch, bool is_grad) {
  return 2 * micro_batch + (is_grad ? 1 : 0);
}

// The messages of a pipeline of a unit per rank.
void RunPipeline(ProcessGroup& group, int64_t num_micro_batches, int64_t bytes) {
  const ScheduleOptions options = {.num_units = group.size(),
                                   .first_unit = group.rank(),
                                   .end_unit = group.rank() + 1,
                                   .num_stages = group.size(),
                                   .stage = group.rank(),
                                   .num_micro_batches = num_micro_batches};
  for (const Instruction& c : Schedule(options)) {
    const int peer = group.rank() + StageOffset(c.op);
    switch (c.op) {
      case Op::kReceiveInput:
      case Op::kReceiveGrad:
        ExpectMessage(group, NumberOf(c.micro_batch, c.op == Op::kReceiveGrad), bytes, peer);
        break;
      case Op::kSendOutput:
      case Op::kSendGrad:
        SendMessage(group, NumberOf(c.micro_batch, c.op == Op::kSendGrad), bytes, peer);
        break;
      case Op::kSendOutputReceiveGrad:
      case Op::kSendGradReceiveInput: {
        const bool sends_grad = c.op == Op::kSendGradReceiveInput;
        ExchangeMessages(group, NumberOf(c.sent_micro_batch, sends_grad),
                         NumberOf(c.micro_batch, !sends_grad), bytes, peer);
        break;
      }
      default:
        break;
    }
  }
}

TEST(MessagesTest, OneForwardOneBackwardDoesNotDeadlock) {
  RunGroups(4, [](ProcessGroup& group) {
    for (const int num_micro_batches : {1, 2, 3, 4, 8})
      RunPipeline(group, num_micro_batches, 300'000);
  });
}

TEST(MessagesTest, MixWithCollectives) {
  RunGroups(4, [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(4 * 4);
    for (int round = 0; round < 50; ++round) {
      ExchangeMessages(group, round, round, 500, group.rank() ^ 1);
      EXPECT_EQ(group.SumScalar(1), 4);
      ExchangeMessages(group, round, round, 700, group.rank() ^ 2);
      group.AllReduce(buffer, DType::kF32, 1);
    }
  });
}

TEST(MailboxesTest, BothRanksMaySendBeforeTheyReceive) {
  RunRanks(2, [](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    for (int number = 0; number < static_cast<int>(std::size(kSizes)); ++number) {
      SendMessage(group, number, kSizes[number], peer);
      ExpectMessage(group, number, kSizes[number], peer);
    }
  });
}

TEST(MailboxesTest, HoldAMessageOfEveryPairDuringCollectives) {
  RunRanks(4, [](ProcessGroup& group) {
    for (int number = 0; number < 20; ++number) {
      for (int peer = 0; peer < group.size(); ++peer) {
        if (peer != group.rank()) SendMessage(group, number, 1000 + 100 * number, peer);
      }
      EXPECT_EQ(group.SumScalar(1), 4);
      for (int peer = group.size() - 1; peer >= 0; --peer) {
        if (peer != group.rank()) ExpectMessage(group, number, 1000 + 100 * number, peer);
      }
    }
  });
}

TEST(MailboxesTest, WhatWasSentBeforeTheSenderLeftIsReceived) {
  RunRanks(2, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      SendMessage(group, 0, 1'000'000, 1);
      return;
    }
    usleep(100'000);
    ExpectMessage(group, 0, 1'000'000, 0);
  });
}

TEST(MailboxesTest, PassMessagesBetweenProcesses) {
  RunTwoProcesses([](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    for (int number = 0; number < 30; ++number) {
      SendMessage(group, number, 600'000 + number, peer);
      ExpectMessage(group, number, 600'000 + number, peer);
    }
    const auto same = group.Split(std::vector<int>{7, 7});
    SendMessage(*same, 1, 10, peer);
    ExpectMessage(*same, 1, 10, peer);
  });
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
  auto groups = MakeRanks(3, kTestTimeout);
  RunThreads(3, [&](int rank) {
    auto group = std::move(groups[static_cast<size_t>(rank)]);
    const auto subgroup = group->Split(std::vector<int>{1, -1, 1});
    group.reset();
    if (rank == 1) return;
    EXPECT_EQ(MembersOf(*subgroup, rank), 0b101);
  });
}

TEST(SplitTest, CountingGroupsSplitAlike) {
  const auto group = std::make_unique<CountingGroup>(2, 4);
  const auto stage = group->Split(std::vector<int>{5, 3, 5, 3});
  EXPECT_EQ(stage->rank(), 1);
  EXPECT_EQ(stage->size(), 2);
  EXPECT_EQ(stage->Allocate(int64_t{1} << 40).data, nullptr);
  EXPECT_EQ(group->Split(std::vector<int>{0, 0, -1, 0}), nullptr);
}

}  // namespace
}  // namespace dsat::engine
