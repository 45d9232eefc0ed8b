// The events of CUDA: a pool of them, and when the streams of a GPU did their work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backend/stream.h"
#include "engine/core/trace.h"

namespace dsat::engine {

// The events of one GPU, since creating an event costs more than recording it. Thread-safe. Lives
// until its last event is released.
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

// Records in a trace when the streams of a GPU did their work, by the GPU's own clock. A span is
// shown on the lane "gpu " + the name of the host's lane. An event of the GPU is recorded at both
// ends of a span. A later span adds the spans that are done to the trace; only turning the trace
// off waits for the others. Without a trace no event is recorded.
class StreamTimes {
 public:
  explicit StreamTimes(int gpu) : gpu_(gpu) {}

  // As the functions of Stream. The first two throw kUnavailable.
  void set_trace(Trace* trace);
  StreamEvent BeginSpan();
  void EndSpan(StreamEvent begin, TraceEvent event);

 private:
  using Clock = TraceEvent::Clock;
  struct Span {
    StreamEvent begin, end;
    TraceEvent event;
  };

  // Records an event whose time the host knows, too.
  void DropAnchor();
  Clock::time_point TimeOf(const StreamEvent& event) const;
  void Add(Span& span);

  const int gpu_;
  Trace* trace_ = nullptr;
  std::shared_ptr<EventPool> events_;
  StreamEvent anchor_;
  Clock::time_point anchored_at_;
  std::mutex mutex_;  // Guards spans_.
  std::deque<Span> spans_;
};

}  // namespace dsat::engine
