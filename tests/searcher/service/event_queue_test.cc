// Tests the queue between gRPC's threads and the runner's loop.
#include "searcher/service/event_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace dsat {
namespace {

bool Readable(int fd, int timeout_ms) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, timeout_ms) == 1;
}

TEST(EventQueueTest, IsReadableExactlyWhileThereIsSomethingToDrain) {
  EventQueue<int> queue;
  EXPECT_FALSE(Readable(queue.fd(), 0));
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_TRUE(Readable(queue.fd(), 0));
  EXPECT_EQ(queue.Drain(), (std::vector<int>{1, 2}));
  EXPECT_FALSE(Readable(queue.fd(), 0));
  EXPECT_TRUE(queue.Drain().empty());
}

TEST(EventQueueTest, ManyThreadsPushInOrderAndNothingIsLost) {
  constexpr int kThreads = 4, kEach = 2000;
  EventQueue<std::pair<int, int>> queue;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&queue, thread] {
      for (int i = 0; i < kEach; ++i)
        queue.Push({thread, i});
    });
  }
  std::vector<int> next(kThreads, 0);
  for (int seen = 0; seen < kThreads * kEach;) {
    ASSERT_TRUE(Readable(queue.fd(), 10'000));
    for (const auto& [thread, i] : queue.Drain()) {
      EXPECT_EQ(i, next[static_cast<size_t>(thread)]++);
      ++seen;
    }
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_TRUE(queue.Drain().empty());
}

TEST(EventQueueTest, ClosingDropsWhatIsQueuedAndRefusesMore) {
  EventQueue<std::shared_ptr<int>> queue;
  const auto event = std::make_shared<int>(7);
  queue.Push(event);
  EXPECT_EQ(event.use_count(), 2);
  queue.Close();
  EXPECT_EQ(event.use_count(), 1);
  EXPECT_FALSE(queue.Push(event));
  EXPECT_EQ(event.use_count(), 1);
  EXPECT_TRUE(queue.Drain().empty());
}

TEST(EventQueueTest, AThreadThatPushesIsStoppedByClosing) {
  EventQueue<int> queue;
  std::thread pusher([&queue] {
    while (queue.Push(1))
      std::this_thread::yield();
  });
  ASSERT_TRUE(Readable(queue.fd(), 10'000));
  queue.Close();
  pusher.join();
  EXPECT_TRUE(queue.Drain().empty());
}

}  // namespace
}  // namespace dsat
