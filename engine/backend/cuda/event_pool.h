// A pool of CUDA events, since creating an event costs more than recording it.
#ifndef DSAT_ENGINE_BACKEND_CUDA_EVENT_POOL_H_
#define DSAT_ENGINE_BACKEND_CUDA_EVENT_POOL_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backend/stream.h"

namespace dsat::engine {

// The events of one GPU. Thread-safe. Lives until its last event is released.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  // `flags` are cudaEventCreateWithFlags's.
  explicit EventPool(unsigned flags) : flags_(flags) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  // Records an unused event on `stream`. The event returns to the pool when its
  // last holder releases it. Throws kUnavailable. REQUIRES: the thread has chosen the GPU, and a
  // shared_ptr owns the pool.
  StreamEvent Record(cudaStream_t stream);

 private:
  StreamEvent Take();

  const unsigned flags_;
  std::mutex mutex_;  // Guards the next two.
  std::vector<cudaEvent_t> free_;
  size_t num_events_ = 0;
};

inline cudaEvent_t EventOf(const StreamEvent& event) {
  return static_cast<cudaEvent_t>(event.get());
}
// The milliseconds between two events that have timing. REQUIRES: both are done.
double MsBetween(const StreamEvent& begin, const StreamEvent& end);
// As Stream::QueryEvent. REQUIRES: not nullptr.
bool QueryEvent(const StreamEvent& event);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_EVENT_POOL_H_
