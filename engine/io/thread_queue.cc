// Blocks in flight on threads, for where io_uring is not to be had.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/io/block_queue.h"

namespace dsat::engine {
namespace {

class ThreadQueue final : public BlockQueue {
 public:
  explicit ThreadQueue(int depth) {
    try {
      for (int i = 0; i < depth; ++i)
        threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error& error) {
      Stop();
      Throw(ErrorCode::kUnavailable, "{} threads for reads and writes: {}", depth,
            error.what());
    }
  }
  ~ThreadQueue() override { Stop(); }

  void Push(int slot, const Block& block) override { prepared_.emplace_back(slot, block); }

  void Submit() override {
    if (prepared_.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      started_.insert(started_.end(), prepared_.begin(), prepared_.end());
    }
    if (prepared_.size() == 1) {
      work_.notify_one();
    } else {
      work_.notify_all();
    }
    prepared_.clear();
  }

  Completion Wait() override {
    std::unique_lock lock(mutex_);
    ended_cv_.wait(lock, [this] { return !ended_.empty(); });
    const Completion completion = ended_.front();
    ended_.pop_front();
    return completion;
  }

 private:
  using Entry = std::pair<int, Block>;

  static int64_t Transfer(const Block& block) {
    const auto bytes = static_cast<size_t>(block.bytes);
    const int64_t moved = block.is_write ? pwrite(block.fd, block.data, bytes, block.offset)
                                         : pread(block.fd, block.data, bytes, block.offset);
    return moved < 0 ? -errno : moved;
  }

  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stop_ || !started_.empty(); });
      if (started_.empty()) return;
      const Entry entry = started_.front();
      started_.pop_front();
      lock.unlock();
      const int64_t result = Transfer(entry.second);
      lock.lock();
      ended_.push_back({entry.first, result});
      ended_cv_.notify_one();
    }
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_)
      thread.join();
  }

  std::vector<Entry> prepared_;  // The worker's own.
  std::mutex mutex_;             // Over all that follows.
  std::condition_variable work_;
  std::condition_variable ended_cv_;
  std::deque<Entry> started_;
  std::deque<Completion> ended_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockQueue> MakeThreadQueue(int depth) {
  return std::make_unique<ThreadQueue>(depth);
}

}  // namespace dsat::engine
