// The ordered queues of a device: copies, events that synchronize its queues, and their trace.
//
// Every thread has its own stream. Kernels, copies and collectives that one thread asks for run in
// the order of its calls, possibly long after the calls return; those of several threads run
// concurrently. A thread that uses what another thread's calls write waits for an event.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "engine/core/tensor.h"
#include "engine/core/trace.h"

namespace dsat::engine {

class Watches;  // cuda/watches.h

// Bytes moved between device and host memory.
struct TierTraffic {
  int64_t to_host_bytes = 0;
  int64_t to_device_bytes = 0;
  TierTraffic operator-(const TierTraffic& before) const {
    return {to_host_bytes - before.to_host_bytes, to_device_bytes - before.to_device_bytes};
  }
  bool operator==(const TierTraffic&) const = default;
};

// A point in the work that a thread has asked a device for; nullptr: all of it is done.
using StreamEvent = std::shared_ptr<void>;

// A queue that belongs to no thread, for a library that launches its work from threads of its own.
// Thread-safe. On a CPU it does nothing. Throws as Stream.
class Queue {
 public:
  virtual ~Queue() = default;
  // The handle that a library is given: a cudaStream_t.
  virtual void* handle() const { return nullptr; }
  // All that comes next waits for the event, without blocking the caller.
  virtual void WaitEvent(const StreamEvent&) {}
  // An event at the point that the queue has reached.
  virtual StreamEvent RecordEvent() { return nullptr; }
};

// The streams of all threads. Everything but set_trace is thread-safe.
class Stream : public TracedDevice {
 public:
  // RecordEvent returns an event at the point that the calling thread's stream has reached.
  // WaitEvent makes all that the calling thread asks for from here on wait for the event, without
  // blocking itself. QueryEvent tells whether all work before the event is done.
  virtual StreamEvent RecordEvent() { return nullptr; }
  virtual void WaitEvent(const StreamEvent&) {}
  virtual bool QueryEvent(const StreamEvent&) { return true; }
  // RecordTime returns the time at which the calling thread's stream comes to this point, by the
  // clock of what does the work. MsBetween gives the milliseconds between two such times.
  // REQUIRES: the host has waited for both points.
  virtual StreamEvent RecordTime() { return std::make_shared<Clock::time_point>(Clock::now()); }
  virtual double MsBetween(const StreamEvent& begin, const StreamEvent& end) {
    const auto time = [](const StreamEvent& e) {
      return *static_cast<Clock::time_point*>(e.get());
    };
    return std::chrono::duration<double, std::milli>(time(end) - time(begin)).count();
  }
  virtual std::shared_ptr<Queue> MakeQueue() { return std::make_shared<Queue>(); }
  // The watches that threads check while they wait for the device, on any stream of it. nullptr:
  // its work always ends.
  virtual Watches* watches() { return nullptr; }

  // Copy bytes to the device and from it. When they return, the copy and all that the calling
  // thread has asked for before are done; another thread makes the copies that shall run in
  // parallel with computing. They serve the input and output of a step: batches, logits,
  // checkpoints.
  virtual void Upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void Download(void* host, const void* device, int64_t bytes) = 0;

  // As Upload, but may return before the work is done; the host memory is free again then.
  virtual void UploadLater(void* device, const void* host, int64_t bytes) {
    Upload(device, host, bytes);
  }

  // host (n) = device (n), and device (n) = host (n), with the same dtype on both sides. They serve
  // model state and activations that change their tier, and count the bytes that a bus carries, on
  // a CPU as well. `lane` is the calling thread's lane in a trace.
  void CopyToHost(Tensor host, Tensor device, const char* lane = kCopyLane) {
    DSAT_CHECK(host.dtype == device.dtype && host.num_elems == device.num_elems);
    const TraceSpan span(trace_, CopyEvent("to host", device.bytes(), lane), this);
    to_host_bytes_ += device.bytes();
    Download(host.data, device.data, device.bytes());
  }
  void CopyToDevice(Tensor device, Tensor host, const char* lane = kCopyLane) {
    DSAT_CHECK(host.dtype == device.dtype && host.num_elems == device.num_elems);
    const TraceSpan span(trace_, CopyEvent("to device", host.bytes(), lane), this);
    to_device_bytes_ += host.bytes();
    Upload(device.data, host.data, host.bytes());
  }
  TierTraffic tier_traffic() const { return {to_host_bytes_, to_device_bytes_}; }

  // From now on `trace` records the copies between tiers, and the work of the device's own queues
  // in spans (TracedDevice; a CPU has no queues). nullptr ends the recording, after which the trace
  // is complete. REQUIRES: no work is under way.
  virtual void set_trace(Trace* trace) {
    trace_ = trace;
    if (trace != nullptr) trace->Lane(kCopyLane);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr char kCopyLane[] = "copies";

  TraceEvent CopyEvent(const char* name, int64_t bytes, const char* lane) const {
    return {.lane = trace_ == nullptr ? 0 : trace_->Lane(lane), .name = name, .bytes = bytes};
  }

  Trace* trace_ = nullptr;
  std::atomic<int64_t> to_host_bytes_ = 0;
  std::atomic<int64_t> to_device_bytes_ = 0;
};

}  // namespace dsat::engine
