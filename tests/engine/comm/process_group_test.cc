// The contract of process groups: every collective against sums formed here, at several sizes.
#include "engine/comm/process_group.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "engine/comm/counting_group.h"
#include "tests/engine/backend/kernels_testing.h"
#include "tests/engine/comm/test_group.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

float Get(const void* data, DType dtype, int64_t i) {
  return static_cast<float>(LoadElem(data, dtype, i));
}

// The number of `dtype` nearest to x.
float Nearest(DType dtype, float x) {
  float stored = 0;
  StoreElem(&stored, dtype, 0, x);
  return Get(&stored, dtype, 0);
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Element i of what `rank` brings to round `round`, representable in `dtype`.
float Input(int rank, int round, DType dtype, int64_t i) {
  Rng rng(static_cast<uint64_t>(rank), static_cast<uint64_t>(round), "input");
  rng.Seek(static_cast<uint64_t>(i));
  return Nearest(dtype, static_cast<float>(2 * rng.Uniform() - 1));
}

float Sum(int size, int round, DType dtype, int64_t i) {
  float sum = Input(0, round, dtype, i);
  for (int rank = 1; rank < size; ++rank)
    sum += Input(rank, round, dtype, i);
  return Nearest(dtype, sum);
}

void FillInput(const ProcessGroup& group, const CommBuffer& buffer, int round, DType dtype,
               int64_t row_elems) {
  for (int64_t i = 0; i < group.size() * row_elems; ++i) {
    StoreElem(buffer.data, dtype, i, Input(group.rank(), round, dtype, i));
  }
}

// Elements [begin, begin + count) of the buffer are the sums, bit by bit.
void ExpectSums(const ProcessGroup& group, const CommBuffer& buffer, int round, DType dtype,
                int64_t begin, int64_t count) {
  for (int64_t i = begin; i < begin + count; ++i) {
    ASSERT_EQ(Get(buffer.data, dtype, i), Sum(group.size(), round, dtype, i))
        << "rank " << group.rank() << " element " << i;
  }
}

// One round of each collective on the same numbers.
void CheckCollectives(ProcessGroup& group, DType dtype, int64_t row_elems) {
  const int64_t all_elems = group.size() * row_elems;
  const int64_t own_begin = group.rank() * row_elems;
  const CommBuffer buffer = group.Allocate(all_elems * BytesPerElem(dtype));

  FillInput(group, buffer, 0, dtype, row_elems);
  group.ReduceScatter(buffer, dtype, row_elems);
  ExpectSums(group, buffer, 0, dtype, own_begin, row_elems);

  FillInput(group, buffer, 1, dtype, row_elems);
  group.AllReduce(buffer, dtype, row_elems);
  ExpectSums(group, buffer, 1, dtype, 0, all_elems);

  FillInput(group, buffer, 2, dtype, row_elems);
  group.AllGather(buffer, row_elems * BytesPerElem(dtype));
  for (int64_t i = 0; i < all_elems; ++i) {
    const auto owner = static_cast<int>(i / row_elems);
    ASSERT_EQ(Get(buffer.data, dtype, i), Input(owner, 2, dtype, i)) << "element " << i;
  }
}

class ProcessGroupTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ProcessGroupTest, testing::Values(1, 2, 3, 4, 5));

TEST_P(ProcessGroupTest, CollectivesGiveTheReferenceBits) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    for (const DType dtype : kDTypes) {
      // Odd sizes: below a vector, across the tile of 2048, no multiple of a page.
      for (const int64_t row_elems : {0, 1, 7, 2047, 2049, 5003}) {
        CheckCollectives(group, dtype, row_elems);
      }
    }
  });
}

TEST_P(ProcessGroupTest, SumsOfF16OverflowToInfinityAndReachTheSmallestNumber) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(group.size() * 2 * 2);
    for (int64_t i = 0; i < group.size() * 2; i += 2) {
      StoreElem(buffer.data, DType::kF16, i, 65504.0F);
      StoreElem(buffer.data, DType::kF16, i + 1, group.rank() == 0 ? 0x1p-24F : 0.0F);
    }
    group.AllReduce(buffer, DType::kF16, 2);
    EXPECT_EQ(Get(buffer.data, DType::kF16, 0), group.size() == 1 ? 65504.0F : HUGE_VALF);
    EXPECT_EQ(Get(buffer.data, DType::kF16, 1), 0x1p-24F);
  });
}

// A byte that says which rank wrote it, for which row and where.
char Content(int rank, int64_t row, int64_t i) {
  return static_cast<char>(rank * 64 + row * 16 + i % 13);
}

TEST_P(ProcessGroupTest, RowsOfBytesAreGathered) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    constexpr int64_t kRowBytes = 4099;
    const CommBuffer buffer = group.Allocate(group.size() * kRowBytes);
    char* data = static_cast<char*>(buffer.data);
    for (int64_t i = 0; i < kRowBytes; ++i)
      data[group.rank() * kRowBytes + i] = Content(group.rank(), group.rank(), i);
    group.AllGather(buffer, kRowBytes);
    for (int row = 0; row < group.size(); ++row) {
      for (int64_t i = 0; i < kRowBytes; ++i)
        ASSERT_EQ(data[row * kRowBytes + i], Content(row, row, i));
    }
  });
}

TEST_P(ProcessGroupTest, BroadcastMovesTheRootsRowAndNoOther) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    constexpr int64_t kRowElems = 1031;
    const CommBuffer buffer = group.Allocate(group.size() * kRowElems * 4);
    auto* data = static_cast<float*>(buffer.data);
    for (int root = 0; root < group.size(); ++root) {
      std::fill(data, data + group.size() * kRowElems, static_cast<float>(group.rank()));
      group.Broadcast(buffer, DType::kF32, kRowElems, root);
      for (int64_t i = 0; i < group.size() * kRowElems; ++i) {
        ASSERT_EQ(data[i], static_cast<float>(i / kRowElems == root ? root : group.rank()));
      }
    }
  });
}

TEST_P(ProcessGroupTest, AllToAllTransposesRowsAndRanks) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    // Below, at and across the halves and tiles of a swap.
    for (const int64_t row_bytes : {0, 1, 63, 127, 128, 8192, 20'001}) {
      const CommBuffer buffer = group.Allocate(group.size() * row_bytes);
      char* data = static_cast<char*>(buffer.data);
      for (int row = 0; row < group.size(); ++row) {
        for (int64_t i = 0; i < row_bytes; ++i)
          data[row * row_bytes + i] = Content(group.rank(), row, i);
      }
      group.AllToAll(buffer, row_bytes);
      for (int row = 0; row < group.size(); ++row) {
        for (int64_t i = 0; i < row_bytes; ++i)
          ASSERT_EQ(data[row * row_bytes + i], Content(row, group.rank(), i)) << row << " " << i;
      }
    }
  });
}

TEST_P(ProcessGroupTest, BuffersStartZeroAndDoNotOverlap) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    std::vector<CommBuffer> buffers;
    for (const int64_t bytes : {4096, 1, 10'000}) {
      buffers.push_back(group.Allocate(bytes));
      const char* data = static_cast<const char*>(buffers.back().data);
      for (int64_t i = 0; i < bytes; ++i)
        ASSERT_EQ(data[i], 0);
      std::memset(buffers.back().data, group.rank() + 1, static_cast<size_t>(bytes));
      group.Barrier();
    }
    for (const CommBuffer& buffer : buffers) {
      const char* data = static_cast<const char*>(buffer.data);
      for (int64_t i = 0; i < buffer.bytes; ++i)
        ASSERT_EQ(data[i], group.rank() + 1);
    }
  });
}

TEST_P(ProcessGroupTest, PartOfABufferCanBeReduced) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(group.size() * 100 * 4);
    auto* data = static_cast<float*>(buffer.data);
    std::fill(data, data + group.size() * 100, 1.0F);
    group.AllReduce(buffer, DType::kF32, 10);
    for (int i = 0; i < group.size() * 100; ++i) {
      ASSERT_EQ(data[i], i < group.size() * 10 ? static_cast<float>(group.size()) : 1.0F);
    }
  });
}

TEST_P(ProcessGroupTest, ScalarsAreSummedInRankOrder) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    double sum = 0;
    for (int rank = 0; rank < group.size(); ++rank)
      sum += 0.1 * (rank + 1);
    EXPECT_EQ(group.SumScalar(0.1 * (group.rank() + 1)), sum);
    EXPECT_EQ(group.MaxScalar(-1.0 - group.rank()), -1.0);
    EXPECT_EQ(group.MaxScalar(group.rank()), group.size() - 1);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(group.MaxScalar(group.rank() == group.size() - 1 ? nan : 1.0)));
    EXPECT_TRUE(std::isnan(group.SumScalar(group.rank() == 0 ? nan : 1.0)));
  });
}

TEST_P(ProcessGroupTest, InfinityAndNanPassThroughSums) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    for (const DType dtype : kDTypes) {
      const CommBuffer buffer = group.Allocate(group.size() * 2 * 4);
      // All ones but the sign: the NaN whose rounding would overflow into zero.
      const float nan = std::bit_cast<float>(0x7fffffffU);
      for (int64_t i = 0; i < group.size() * 2; ++i) {
        if (dtype == DType::kF32) {
          static_cast<float*>(buffer.data)[i] = i % 2 == 0 ? HUGE_VALF : nan;
        } else {
          const int infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
          static_cast<uint16_t*>(buffer.data)[i] =
              static_cast<uint16_t>(i % 2 == 0 ? infinity : 0x7fff);
        }
      }
      group.AllReduce(buffer, dtype, 2);
      for (int64_t i = 0; i < group.size() * 2; i += 2) {
        EXPECT_EQ(Get(buffer.data, dtype, i), HUGE_VALF);
        EXPECT_TRUE(std::isnan(Get(buffer.data, dtype, i + 1)));
      }
    }
  });
}

TEST_P(ProcessGroupTest, AThousandSmallCollectivesStayInStep) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    const CommBuffer buffer = group.Allocate(group.size() * 4);
    auto* data = static_cast<float*>(buffer.data);
    for (int round = 0; round < 1000; ++round) {
      for (int i = 0; i < group.size(); ++i)
        data[i] = static_cast<float>(group.rank() + round + i);
      group.AllReduce(buffer, DType::kF32, 1);
      for (int i = 0; i < group.size(); ++i) {
        ASSERT_EQ(data[i], group.size() * (round + i) + group.size() * (group.size() - 1) / 2);
      }
    }
  });
}

TEST_P(ProcessGroupTest, TrafficIsWhatARingSends) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    const int64_t peers = group.size() - 1;
    const CommBuffer buffer = group.Allocate(group.size() * 1000 * 4);
    group.ReduceScatter(buffer, DType::kF32, 1000);
    EXPECT_EQ(group.traffic(), (Traffic{1, peers * 4000}));
    group.AllGather(buffer, 2000);
    EXPECT_EQ(group.traffic(), (Traffic{2, peers * 6000}));
    group.AllReduce(buffer, DType::kF32, 500);
    EXPECT_EQ(group.traffic(), (Traffic{3, peers * 10'000}));
    group.Barrier();
    group.SumScalar(1);
    EXPECT_EQ(group.traffic(), (Traffic{3, peers * 10'000}));
    group.AllGather(buffer, 700);
    group.AllToAll(buffer, 300);
    EXPECT_EQ(group.traffic(), (Traffic{5, peers * 11'000}));
    // Over all roots as much as one all_gather; each ring ends at one of the ranks.
    for (int root = 0; root < group.size(); ++root)
      group.Broadcast(buffer, DType::kF32, 250, root);
    EXPECT_EQ(group.traffic(), (Traffic{5 + group.size(), peers * 12'000}));
  });
}

// Gives the traffic of a subgroup; the group has its own.
Traffic RunSomeCalls(ProcessGroup& group) {
  const CommBuffer small = group.Allocate(group.size() * 8);
  const CommBuffer large = group.Allocate(group.size() * 4004);
  group.ReduceScatter(large, DType::kF32, 1001);
  group.AllReduce(small, DType::kBF16, 3);
  group.SumScalar(1);
  group.AllGather(large, 999 * 2);
  group.AllGather(large, 77);
  group.AllToAll(large, 78);
  group.Broadcast(large, DType::kF16, 79, group.size() - 1);
  group.Barrier();
  // Around the ring, in the whole group and in that of the even and the odd ranks.
  std::vector<int> colors;
  for (int rank = 0; rank < group.size(); ++rank)
    colors.push_back(rank % 2);
  const auto half = group.Split(colors);
  for (ProcessGroup* ring : {&group, half.get()}) {
    if (ring->size() == 1) continue;
    std::vector<char> message(1001);
    const int next = (ring->rank() + 1) % ring->size();
    if (ring->rank() == 0) ring->Send(message.data(), 1001, next);
    ring->Recv(message.data(), 1001, (ring->rank() + ring->size() - 1) % ring->size());
    if (ring->rank() != 0) ring->Send(message.data(), 1001, next);
    std::vector<char> from_peer(99);
    const int peer = ring->rank() ^ 1;
    if (peer < ring->size()) ring->Exchange(message.data(), from_peer.data(), 99, peer);
  }
  return half->traffic();
}

TEST_P(ProcessGroupTest, CountingGroupCountsWhatTheOthersSend) {
  RunGroups(GetParam(), [](ProcessGroup& group) {
    const auto counting = std::make_unique<CountingGroup>(group.rank(), group.size());
    const Traffic of_half = RunSomeCalls(group);
    EXPECT_EQ(of_half, RunSomeCalls(*counting));
    EXPECT_EQ(group.traffic(), counting->traffic());
    const bool has_peer = (group.rank() ^ 1) < group.size();
    EXPECT_EQ(group.traffic().num_messages, group.size() == 1 ? 0 : has_peer ? 2 : 1);
  });
}

TEST_P(ProcessGroupTest, OnePlaceServesOneGroupAfterAnother) {
  const MeetingPlace place;
  for (int generation = 0; generation < 3; ++generation) {
    RunThreads(GetParam(), [&](int rank) {
      // Without a pause between the groups: a fast rank joins the next while a slow one leaves.
      for (int again = 0; again < 3; ++again) {
        const auto group = place.Join(rank, GetParam());
        CheckCollectives(*group, DType::kF32, 100);
        const CommBuffer fresh = group->Allocate(4096);
        EXPECT_EQ(static_cast<const char*>(fresh.data)[17], 0);
        std::memset(fresh.data, 1, 4096);
      }
    });
  }
}

TEST(CountingGroupTest, MovesNothing) {
  const auto group = std::make_unique<CountingGroup>(1, 4);
  const CommBuffer buffer = group->Allocate(int64_t{1} << 40);
  EXPECT_EQ(buffer.data, nullptr);
  EXPECT_EQ(buffer.bytes, int64_t{1} << 40);
  EXPECT_EQ(group->SumScalar(3), 3);
  EXPECT_EQ(group->MaxScalar(3), 3);
}

TEST(LocalGroupTest, NeedsNoFile) {
  const auto group = MakeShmGroup(-1, 0, 1, kTestTimeout);
  CheckCollectives(*group, DType::kBF16, 33);
}

TEST(ShmGroupTest, WorksBetweenProcesses) {
  RunTwoProcesses([](ProcessGroup& group) {
    for (int round = 0; round < 20; ++round) {
      CheckCollectives(group, DType::kF32, 1009);
      CheckCollectives(group, DType::kBF16, 1009);
    }
  });
}

}  // namespace
}  // namespace dsat::engine
