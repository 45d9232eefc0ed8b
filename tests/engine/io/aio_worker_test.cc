// Each setting of the aio block decides in which portions blocks are handed to the kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "engine/io/worker.h"

namespace dsat::engine {
namespace {

// Moves nothing, ends blocks in their order and notes every call: P(ush), S(ubmit), W(ait).
class NotingQueue : public BlockQueue {
 public:
  explicit NotingQueue(std::string* calls) : calls_(calls) {}

  void Push(int slot, const Block& block) override {
    *calls_ += 'P';
    prepared_.push_back({slot, block.bytes});
  }
  void Submit() override {
    if (prepared_.empty()) return;
    *calls_ += 'S';
    in_flight_.insert(in_flight_.end(), prepared_.begin(), prepared_.end());
    prepared_.clear();
  }
  Completion Wait() override {
    *calls_ += 'W';
    const Completion first = in_flight_.front();
    in_flight_.pop_front();
    return first;
  }

 private:
  std::string* calls_;
  std::vector<Completion> prepared_;
  std::deque<Completion> in_flight_;
};

// The calls for one request of five blocks.
std::string CallsFor(AioOptions options) {
  constexpr int kNumBlocks = 5;
  options.block_size = kAioAlignment;
  std::string calls;
  std::promise<void> done;
  int num_ended = 0;
  const auto on_end = [&](const Piece&, int error) {
    EXPECT_EQ(error, 0);
    if (++num_ended == kNumBlocks) done.set_value();
  };
  std::vector<char> data(kNumBlocks * kAioAlignment);
  {
    Worker worker(-1, -1, std::make_unique<NotingQueue>(&calls), options, on_end);
    worker.Add({.data = data.data(), .bytes = std::ssize(data)});
    done.get_future().wait();
  }
  return calls;
}

TEST(AioWorkerTest, NoMoreBlocksAreInFlightThanTheQueueIsDeep) {
  EXPECT_EQ(CallsFor({.queue_depth = 1}), "PSWPSWPSWPSWPSW");
  EXPECT_EQ(CallsFor({.queue_depth = 3}), "PPPSWPSWPSWWW");
  EXPECT_EQ(CallsFor({.queue_depth = 8}), "PPPPPSWWWWW");
}

TEST(AioWorkerTest, BlocksAreHandedOverTogetherOrOneByOne) {
  EXPECT_EQ(CallsFor({.queue_depth = 3, .single_submit = false}), "PPPSWPSWPSWWW");
  EXPECT_EQ(CallsFor({.queue_depth = 3, .single_submit = true}), "PSPSPSWPSWPSWWW");
}

TEST(AioWorkerTest, TheQueueIsFilledAgainAtOnceOrWhenItIsEmpty) {
  EXPECT_EQ(CallsFor({.queue_depth = 3, .overlap_events = true}), "PPPSWPSWPSWWW");
  EXPECT_EQ(CallsFor({.queue_depth = 3, .overlap_events = false}), "PPPSWWWPPSWW");
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
                                        {.queue_depth = 2, .intra_op_parallelism = num_workers},
                                        AioEngine::kThreads);
    const int64_t expected = before + num_workers * (1 + 2);
    for (int i = 0; i < 1000 && NumThreads() != expected; ++i)  // Some may not be quite gone.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(NumThreads(), expected);
  }
  over.set_value();
}

}  // namespace
}  // namespace dsat::engine
