// Records in a trace when the streams of a GPU did their work, by the GPU's own clock.
#ifndef DSAT_ENGINE_BACKEND_CUDA_STREAM_TIMES_H_
#define DSAT_ENGINE_BACKEND_CUDA_STREAM_TIMES_H_

#include <deque>
#include <memory>
#include <mutex>

#include "engine/backend/cuda/event_pool.h"
#include "engine/core/trace.h"

namespace dsat::engine {

// A span is shown on the lane "gpu " + the name of the host's lane. An event of the GPU is recorded
// at both ends of a span. A later span adds the spans that are done to the trace; only turning the
// trace off waits for the others. Without a trace no event is recorded.
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

#endif  // DSAT_ENGINE_BACKEND_CUDA_STREAM_TIMES_H_
