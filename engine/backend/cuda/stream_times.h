// When the streams of a GPU did what they were asked for, by the GPU's own clock.
#ifndef DSAT_ENGINE_BACKEND_CUDA_STREAM_TIMES_H_
#define DSAT_ENGINE_BACKEND_CUDA_STREAM_TIMES_H_

#include <deque>
#include <memory>
#include <mutex>

#include "engine/backend/cuda/event_pool.h"
#include "engine/core/trace.h"

namespace dsat::engine {

// Spans on lanes that are called "gpu " and the name of the host's. An event of the GPU is recorded
// at both ends; a later span adds those that have passed to the trace, and nobody waits for them
// before the trace is turned off. Without a trace no event is made.
class StreamTimes {
 public:
  explicit StreamTimes(int gpu) : gpu_(gpu) {}

  // As Kernels's. The first two throw kUnavailable.
  void set_trace(Trace* trace);
  StreamEvent BeginSpan();
  void EndSpan(StreamEvent begin, TraceEvent event);

 private:
  using Clock = TraceEvent::Clock;
  struct Span {
    StreamEvent begin, end;
    TraceEvent event;
  };

  // An event whose time the host knows, too.
  void DropAnchor();
  Clock::time_point TimeOf(const StreamEvent& event) const;
  void Add(Span& span);

  const int gpu_;
  Trace* trace_ = nullptr;
  std::shared_ptr<EventPool> events_;
  StreamEvent anchor_;
  Clock::time_point anchored_at_;
  std::mutex mutex_;  // Over spans_.
  std::deque<Span> spans_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_STREAM_TIMES_H_
