// The emulated GPU's queues. What is put into one is done as late as CUDA allows: when somebody
// waits for it, or for something that an event or the legacy stream has put after it. Work that
// nobody waits for is never done. So a missing synchronization gives wrong numbers, each time.
//
// Every piece of work takes one tick of the GPU's clock, and nothing else does. Only a stream that
// has nothing left to do takes the time at once.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace emulated_cuda {

class Queue;

// The work of a queue up to here.
struct Point {
  std::shared_ptr<Queue> queue;
  int64_t count = 0;  // Pieces of work since the queue's beginning.
};

// cudaEvent_ts since the program began.
struct EventCounts {
  int64_t num_made = 0;
  int64_t num_timed = 0;  // The part of num_made with times.
  int64_t num_alive = 0;
};
EventCounts CountEvents();

// How often the host has waited for work that was not done.
int64_t CountHostWaits();

class Queue {
 public:
  explicit Queue(bool blocking) : blocking_(blocking) {}

 private:
  friend class Gpu;
  struct Work {
    std::function<void()> run;
    std::vector<Point> after;
    std::shared_ptr<int64_t> time;
    std::shared_ptr<const std::atomic<bool>> gate = nullptr;
  };

  bool blocking_;  // The legacy stream waits for it, and it for the legacy stream.
  std::deque<Work> work_;
  int64_t issued_ = 0, done_ = 0;
};

// Thread-safe. One piece of work runs at a time, on the thread that waits for it.
class Gpu {
 public:
  static Gpu& Get();

  cudaStream_t MakeStream(bool blocking);
  bool DestroyStream(cudaStream_t stream);
  // nullptr if there is no such stream.
  std::shared_ptr<Queue> Find(cudaStream_t stream);

  // After what the queue has and the points; gives the queue's point behind it. nullptr is no
  // work, but waits for the points.
  Point Enqueue(const std::shared_ptr<Queue>& queue, std::function<void()> work,
                std::vector<Point> after = {});
  // *time becomes the clock when the queue comes to the point given.
  Point TakeTime(const std::shared_ptr<Queue>& queue, std::shared_ptr<int64_t> time);
  int64_t ticks();
  Point Now(const std::shared_ptr<Queue>& queue);
  bool IsDone(const Point& point);
  // Finish returns false if the work stops at a closed gate.
  bool Finish(const Point& point);
  bool FinishAll();
  // Work that the queue is given from here on is not done before the gate is open.
  using Gate = std::shared_ptr<const std::atomic<bool>>;
  void Block(const std::shared_ptr<Queue>& queue, Gate gate);

 private:
  Point Push(const std::shared_ptr<Queue>& queue, Queue::Work work);
  bool Run(Queue& queue, int64_t count);

  std::mutex mutex_;
  int64_t ticks_ = 0;
  const std::shared_ptr<Queue> legacy_ = std::make_shared<Queue>(true);
  std::map<cudaStream_t, std::shared_ptr<Queue>> streams_;
  std::vector<std::shared_ptr<Queue>> queues_ = {legacy_};  // All that may have work.
};

}  // namespace emulated_cuda
