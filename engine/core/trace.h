// A record of what one rank did at which time, on each of its concurrent queues. It is made while a
// few steps run, and chrome://tracing or Perfetto show it (write_trace.h).
//
// A lane is one queue: the thread that computes, the thread that runs collectives, the copies
// between tiers, the disk behind a swap file, a stream of a device. The code that works on a queue
// asks for its lane by name and adds an event when it knows the begin and the end: when the work
// ends, or later on a device that reports its times. Times are those of the steady clock, which on
// Linux is the same for all processes of a machine (CLOCK_MONOTONIC).
#pragma once

#include <algorithm>
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
  const char* name = "";  // The name of the work; must outlive the trace.
  Clock::time_point begin = {};
  Clock::time_point end = {};
  // The subject of the work. -1, nullptr and "" mean that this is not known.
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
  // Lanes that every rank has: whole steps, and the work of the rank's own thread in them.
  static constexpr int kSteps = 0;
  static constexpr int kCompute = 1;

  // Returns the lane of that name; makes it if there is none.
  int Lane(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(lanes_.begin(), lanes_.end(), name);
    const auto lane = static_cast<int>(found - lanes_.begin());
    if (found == lanes_.end()) lanes_.push_back(name);
    return lane;
  }
  // Events of a lane may be added in any order. They may be nested, but not overlap in other ways.
  void Add(TraceEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }

  std::vector<std::string> lanes() const {
    const std::lock_guard lock(mutex_);
    return lanes_;
  }
  std::vector<TraceEvent> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }

 private:
  mutable std::mutex mutex_;  // Guards the next two.
  std::vector<std::string> lanes_ = {"steps", "compute"};
  std::vector<TraceEvent> events_;
};

// A device with queues of its own, one per thread, which work asynchronously.
class TracedDevice {
 public:
  virtual ~TracedDevice() = default;
  // While the device is traced, the work that the calling thread asks for between BeginSpan and
  // EndSpan is an event of its own, on a lane of the device beside that of `event`. The event
  // begins when the thread's queue reaches the work and ends when the queue has done it.
  // Thread-safe. EndSpan does not throw; if the device fails, it adds no event.
  virtual std::shared_ptr<void> BeginSpan() { return nullptr; }
  virtual void EndSpan(std::shared_ptr<void>, TraceEvent) {}
};

// Adds an event that lasts as long as this object; does nothing without a trace. With a `device`,
// which has the same trace, adds the device's times as well.
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
