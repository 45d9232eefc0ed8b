// The settings of the aio block decide how many blocks are in flight and when one starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "engine/io/worker.h"

namespace dsat::engine {
namespace {

// The blocks of a request note how many others are in flight.
struct Seen {
  int most_in_flight = 0;
  int started_beside_others = 0;  // After some block has ended.
};

// One request of 60 blocks, each of which takes a moment.
Seen Move(AioOptions options) {
  constexpr int kNumBlocks = 60;
  options.block_size = kAioAlignment;
  std::vector<char> data(kNumBlocks * kAioAlignment);
  std::mutex mutex;
  Seen seen;
  std::set<int64_t> moved;
  int in_flight = 0;
  const auto move = [&](const Piece& block) {
    {
      const std::lock_guard lock(mutex);
      seen.started_beside_others += in_flight > 0 && !moved.empty() ? 1 : 0;
      seen.most_in_flight = std::max(seen.most_in_flight, ++in_flight);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + block.offset / kAioAlignment % 3));
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(moved.insert(block.offset).second);
    --in_flight;
    return block.bytes;
  };
  {
    Worker worker(options, move, [](const Piece&, int error) { EXPECT_EQ(error, 0); });
    worker.Add({.data = data.data(), .bytes = std::ssize(data)});
  }
  EXPECT_EQ(moved.size(), kNumBlocks);
  return seen;
}

TEST(AioWorkerTest, NoMoreBlocksAreInFlightThanTheQueueIsDeep) {
  for (const bool single : {false, true}) {
    EXPECT_EQ(Move({.queue_depth = 1, .single_submit = single}).most_in_flight, 1);
    const int most = Move({.queue_depth = 3, .single_submit = single}).most_in_flight;
    EXPECT_TRUE(most == 2 || most == 3) << most;
  }
}

TEST(AioWorkerTest, ABlockStartsWhenOneIsDoneOrWhenAllAre) {
  EXPECT_GT(Move({.queue_depth = 3, .overlap_events = true}).started_beside_others, 0);
  // The first one of each three blocks starts alone.
  EXPECT_LE(Move({.queue_depth = 3, .overlap_events = false}).started_beside_others, 40);
}

TEST(AioWorkerTest, ShortTransfersGoOnAndErrorsEndABlock) {
  std::vector<char> data(kAioAlignment);
  std::vector<int64_t> offsets;
  int ended = -1;
  const auto on_end = [&](const Piece&, int error) { ended = error; };
  const auto move = [&](const Piece& block) -> int64_t {
    offsets.push_back(block.offset);
    if (offsets.size() == 2) return -EINTR;
    return offsets.size() == 3 ? -ENOSPC : 1000;
  };
  {
    Worker worker({.queue_depth = 1}, move, on_end);
    worker.Add({.data = data.data(), .bytes = std::ssize(data)});
  }
  EXPECT_THAT(offsets, testing::ElementsAre(0, 1000, 1000));
  EXPECT_EQ(ended, ENOSPC);
}

int64_t NumThreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(AioWorkerTest, EveryWorkerHasThreadsOfItsOwn) {
  // From the first thread on a sanitizer has one of its own, too.
  std::promise<void> over;
  const std::jthread first([end = over.get_future()] { end.wait(); });
  const int64_t before = NumThreads();
  for (const int num_workers : {1, 3}) {
    const auto file = AsyncFile::Create(testing::TempDir(), 1 << 20,
                                        {.queue_depth = 2, .intra_op_parallelism = num_workers});
    const int64_t expected = before + num_workers * 2;
    for (int i = 0; i < 1000 && NumThreads() != expected; ++i)  // Some may not be quite gone.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(NumThreads(), expected);
  }
  over.set_value();
}

}  // namespace
}  // namespace dsat::engine
