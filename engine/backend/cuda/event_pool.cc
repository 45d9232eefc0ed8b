// CUDA events that are used again.
#include "engine/backend/cuda/event_pool.h"

#include "engine/backend/cuda/cuda_error.h"

namespace dsat::engine {

EventPool::~EventPool() {
  for (const cudaEvent_t event : free_)
    cudaEventDestroy(event);
}

StreamEvent EventPool::Record(cudaStream_t stream) {
  StreamEvent event = Take();
  CheckCuda(cudaEventRecord(EventOf(event), stream), "cudaEventRecord");
  return event;
}

// A stream that still waits for an event's old record does so after it is recorded anew
// (cudaStreamWaitEvent takes what was captured when it was called).
StreamEvent EventPool::Take() {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.reserve(num_events_ + 1);  // So that coming back cannot fail.
      CheckCuda(cudaEventCreateWithFlags(&event, flags_), "cudaEventCreateWithFlags");
      ++num_events_;
    } else {
      event = free_.back();
      free_.pop_back();
    }
  }
  return {event, [pool = shared_from_this()](void* old) {
            const std::lock_guard lock(pool->mutex_);
            pool->free_.push_back(static_cast<cudaEvent_t>(old));
          }};
}

double MsBetween(const StreamEvent& begin, const StreamEvent& end) {
  float ms = 0;
  CheckCuda(cudaEventElapsedTime(&ms, EventOf(begin), EventOf(end)), "cudaEventElapsedTime");
  return double{ms};
}

bool QueryEvent(const StreamEvent& event) {
  const cudaError_t state = cudaEventQuery(EventOf(event));
  if (state != cudaErrorNotReady) {
    CheckCuda(state, "cudaEventQuery");
    return true;
  }
  cudaGetLastError();  // Or the next launch would report it.
  return false;
}

}  // namespace dsat::engine
