// CUDA events that are used again, and the times of spans between them.
#include "engine/backend/cuda/events.h"

#include <utility>

#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/launch_kernel.h"

namespace dsat::engine {
namespace {

// So many spans of a step or two are kept before anybody asks whether they have passed.
constexpr size_t kFewSpans = 512;

}  // namespace

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

void StreamTimes::set_trace(Trace* trace) {
  for (Span& span : std::exchange(spans_, {})) {
    CheckCuda(cudaEventSynchronize(EventOf(span.end)), "cudaEventSynchronize");
    Add(span);
  }
  anchor_ = nullptr;
  events_ = nullptr;
  trace_ = trace;
  if (trace_ == nullptr) return;
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  events_ = std::make_shared<EventPool>(cudaEventDefault);
  DropAnchor();
}

// The time lies between two of the host's: of a few tries the one with the least in between.
void StreamTimes::DropAnchor() {
  constexpr int kNumTries = 10;
  auto least = Clock::duration::max();
  for (int i = 0; i < kNumTries; ++i) {
    const auto before = Clock::now();
    StreamEvent anchor = events_->Record(cuda::Stream());
    CheckCuda(cudaEventSynchronize(EventOf(anchor)), "cudaEventSynchronize");
    const auto between = Clock::now() - before;
    if (between >= least) continue;
    least = between;
    anchor_ = std::move(anchor);
    anchored_at_ = before + between / 2;
  }
}

StreamEvent StreamTimes::BeginSpan() {
  if (trace_ == nullptr) return nullptr;
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  return events_->Record(cuda::Stream());
}

void StreamTimes::EndSpan(StreamEvent begin, TraceEvent event) {
  if (begin == nullptr) return;
  try {
    StreamEvent end = events_->Record(cuda::Stream());
    const std::lock_guard lock(mutex_);
    spans_.push_back({std::move(begin), std::move(end), std::move(event)});
    while (spans_.size() > kFewSpans && QueryEvent(spans_.front().end)) {
      Add(spans_.front());
      spans_.pop_front();
    }
  } catch (const Error&) {
    // The thread that waits for the work gets the same error.
  }
}

StreamTimes::Clock::time_point StreamTimes::TimeOf(const StreamEvent& event) const {
  const std::chrono::duration<double, std::milli> since(MsBetween(anchor_, event));
  return anchored_at_ + std::chrono::duration_cast<Clock::duration>(since);
}

void StreamTimes::Add(Span& span) {
  span.event.begin = TimeOf(span.begin);
  span.event.end = TimeOf(span.end);
  span.event.lane = trace_->Lane("gpu " + trace_->lanes()[static_cast<size_t>(span.event.lane)]);
  trace_->Add(std::move(span.event));
}

}  // namespace dsat::engine
