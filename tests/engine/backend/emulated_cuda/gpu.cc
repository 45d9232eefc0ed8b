// The emulated GPU's queues.
#include "tests/engine/backend/emulated_cuda/gpu.h"

#include <algorithm>
#include <utility>

#include "tests/engine/backend/emulated_cuda/memory.h"

namespace emulated_cuda {

Gpu& Gpu::Get() {
  static auto& gpu = *new Gpu;
  return gpu;
}

cudaStream_t Gpu::MakeStream(bool blocking) {
  const auto queue = std::make_shared<Queue>(blocking);
  const std::lock_guard lock(mutex_);
  queues_.push_back(queue);
  const auto stream = reinterpret_cast<cudaStream_t>(queue.get());
  streams_[stream] = queue;
  return stream;
}

bool Gpu::DestroyStream(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  return streams_.erase(stream) > 0;
}

std::shared_ptr<Queue> Gpu::Find(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return legacy_;
  const std::lock_guard lock(mutex_);
  if (stream == cudaStreamPerThread) {
    static thread_local std::shared_ptr<Queue> own;
    if (own == nullptr) {
      own = std::make_shared<Queue>(true);
      queues_.push_back(own);
    }
    return own;
  }
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

Point Gpu::Enqueue(const std::shared_ptr<Queue>& queue, std::function<void()> work,
                   std::vector<Point> after) {
  const std::lock_guard lock(mutex_);
  return Push(queue, {std::move(work), std::move(after), nullptr});
}

Point Gpu::TakeTime(const std::shared_ptr<Queue>& queue, std::shared_ptr<int64_t> time) {
  const std::lock_guard lock(mutex_);
  const Point point = Push(queue, {nullptr, {}, std::move(time)});
  const bool idle = queue->work_.size() == 1 && queue->work_.front().after.empty();
  if (idle) Run(*queue, point.count);
  return point;
}

int64_t Gpu::ticks() {
  const std::lock_guard lock(mutex_);
  return ticks_;
}

Point Gpu::Push(const std::shared_ptr<Queue>& queue, Queue::Work work) {
  // Removes the queues of threads that have ended and of streams that are gone.
  std::erase_if(queues_, [](const auto& q) { return q.use_count() == 1 && q->work_.empty(); });
  for (const auto& other : queues_) {
    const bool ordered = queue->blocking_ && other->blocking_ && other != queue &&
                         (queue == legacy_ || other == legacy_);
    if (ordered && !other->work_.empty()) work.after.push_back({other, other->issued_});
  }
  queue->work_.push_back(std::move(work));
  return {queue, ++queue->issued_};
}

Point Gpu::Now(const std::shared_ptr<Queue>& queue) {
  const std::lock_guard lock(mutex_);
  return {queue, queue->issued_};
}

bool Gpu::IsDone(const Point& point) {
  const std::lock_guard lock(mutex_);
  return point.queue->done_ >= point.count;
}

void Gpu::Block(const std::shared_ptr<Queue>& queue, Gate gate) {
  const std::lock_guard lock(mutex_);
  Push(queue, {nullptr, {}, nullptr, std::move(gate)});
}

bool Gpu::Finish(const Point& point) {
  const std::lock_guard lock(mutex_);
  const Memory::Access access;
  return Run(*point.queue, point.count);
}

bool Gpu::FinishAll() {
  const std::lock_guard lock(mutex_);
  const Memory::Access access;
  return std::ranges::all_of(queues_,
                             [&](const auto& queue) { return Run(*queue, queue->issued_); });
}

bool Gpu::Run(Queue& queue, int64_t count) {
  while (queue.done_ < count) {
    // Work that it comes after was put into its queue before: there is no circle.
    const Queue::Work& work = queue.work_.front();
    for (const Point& point : work.after)
      if (!Run(*point.queue, point.count)) return false;
    if (work.gate && !*work.gate) return false;
    if (work.run) {
      work.run();
      ++ticks_;
    }
    if (work.time) *work.time = ticks_;
    queue.work_.pop_front();
    ++queue.done_;
  }
  return true;
}

}  // namespace emulated_cuda
