// What one rank did when, on each of the queues that work beside each other: recorded while a few
// steps run, shown by chrome://tracing or Perfetto (write_trace.h).
//
// A lane is such a queue: the thread that computes, the one that runs collectives, the copies
// between tiers, the disk behind a swap file, a stream of a device. Whoever works on it asks for
// its lane by name, and adds an event once it knows when it began and ended: at its end, or, as a
// device that reports its times, later. Times are of the steady clock, which on Linux is the same
// for all processes of a machine (CLOCK_MONOTONIC).
#ifndef DSAT_ENGINE_CORE_TRACE_H_
#define DSAT_ENGINE_CORE_TRACE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace dsat::engine {

struct TraceEvent {
  using Clock = std::chrono::steady_clock;

  int lane = 0;
  const char* name = "";  // Of what is done; outlives the trace.
  Clock::time_point begin = {};
  Clock::time_point end = {};
  // What it is done to; -1, nullptr and "" say nothing.
  int64_t step = -1;  // Counted from 1.
  const char* phase = nullptr;
  int micro_batch = -1;
  int unit = -1;
  int sub_group = -1;
  int64_t bytes = -1;
  std::string about = {};
};

// Thread-safe.
class Trace {
 public:
  // Lanes that every rank has: whole steps, and what the rank's own thread does in them.
  static constexpr int kSteps = 0;
  static constexpr int kCompute = 1;

  // The lane of that name, made if there is none.
  int Lane(const std::string& name);
  // Events of a lane may come in any order, and lie in one another; else they do not overlap.
  void Add(TraceEvent event);

  std::vector<std::string> lanes() const;
  std::vector<TraceEvent> events() const;

 private:
  mutable std::mutex mutex_;  // Over the next two.
  std::vector<std::string> lanes_ = {"steps", "compute"};
  std::vector<TraceEvent> events_;
};

// A device with queues of its own, one per thread, that do what they are asked for later.
class TracedDevice {
 public:
  virtual ~TracedDevice() = default;
  // While the device is traced: what the calling thread asks for from BeginSpan on to EndSpan is
  // an event, too, on a lane of the device beside that of `event`. It begins when the thread's
  // queue has come to it and ends when the queue has done it. Thread-safe. EndSpan does not throw:
  // without an event, if the device fails.
  virtual std::shared_ptr<void> BeginSpan() { return nullptr; }
  virtual void EndSpan(std::shared_ptr<void>, TraceEvent) {}
};

// Adds an event that lasts as long as this does; nothing without a trace. With a `device`, which
// has the same trace, its own times as well.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, TraceEvent event, TracedDevice* device = nullptr)
      : trace_(trace), device_(device), event_(std::move(event)) {
    if (trace_ == nullptr) return;
    event_.begin = TraceEvent::Clock::now();
    if (device_ != nullptr) on_device_ = device_->BeginSpan();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (trace_ == nullptr) return;
    event_.end = TraceEvent::Clock::now();
    trace_->Add(event_);
    if (device_ != nullptr) device_->EndSpan(std::move(on_device_), std::move(event_));
  }

 private:
  Trace* const trace_;
  TracedDevice* const device_;
  TraceEvent event_;
  std::shared_ptr<void> on_device_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CORE_TRACE_H_
