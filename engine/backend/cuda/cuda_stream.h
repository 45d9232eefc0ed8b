// The streams of a GPU, one per thread, and the memory that its kernels keep.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/backend/cuda/events.h"
#include "engine/backend/cuda/watches.h"
#include "engine/backend/stream.h"

namespace dsat::engine {

// A thread's work on a GPU runs on CUDA's default stream of that thread, and its events are CUDA's.
// Every call throws kUnavailable if the GPU reports an error.
class CudaStream final : public Stream {
 public:
  CudaStream(int gpu, std::shared_ptr<Watches> watches)
      : gpu_(gpu),
        watches_(std::move(watches)),
        events_(std::make_shared<EventPool>(cudaEventDisableTiming)),
        timed_events_(std::make_shared<EventPool>(cudaEventDefault)),
        times_(gpu) {}
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() override;

  StreamEvent RecordEvent() override;
  void WaitEvent(const StreamEvent& event) override;
  bool QueryEvent(const StreamEvent& event) override {
    return event == nullptr || engine::QueryEvent(event);
  }
  StreamEvent RecordTime() override;
  double MsBetween(const StreamEvent& begin, const StreamEvent& end) override {
    return engine::MsBetween(begin, end);
  }
  std::shared_ptr<Queue> MakeQueue() override;
  Watches* watches() override { return watches_.get(); }
  void set_trace(Trace* trace) override;
  StreamEvent BeginSpan() override { return times_.BeginSpan(); }
  void EndSpan(StreamEvent begin, TraceEvent event) override {
    times_.EndSpan(std::move(begin), std::move(event));
  }
  void Upload(void* device, const void* host, int64_t bytes) override {
    Copy(device, host, bytes, cudaMemcpyHostToDevice);
  }
  // By way of page-locked memory of the stream's, which is used again when a copy is done.
  void UploadLater(void* device, const void* host, int64_t bytes) override;
  void Download(void* host, const void* device, int64_t bytes) override {
    Copy(host, device, bytes, cudaMemcpyDeviceToHost);
  }
  // If there are watches, waits for all that the calling thread has asked for, and throws what a
  // watch throws. Whoever waits by a call of CUDA, which watches nothing, calls this before.
  void WaitWatched() const;

 private:
  struct Stage {
    void* data = nullptr;
    int64_t bytes = 0;
    StreamEvent copied;  // It may be used when that is done.
  };

  void Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const;
  // An unused stage; without data if the system refuses to lock pages.
  Stage TakeStage(int64_t bytes);

  const int gpu_;
  const std::shared_ptr<Watches> watches_;
  const std::shared_ptr<EventPool> events_, timed_events_;
  StreamTimes times_;
  std::mutex mutex_;  // Guards stages_.
  std::vector<Stage> stages_;
};

// Runs `enqueue`, which enqueues work on the calling thread's stream, a few times and waits for it.
// Returns the milliseconds of one run after the first.
double MeasureOnGpu(const std::function<void()>& enqueue);

// Device memory that the kernels of one rank share: kCudaScratchBytes (cost.h) from its first use
// on, and more if a kernel needs it. Not thread-safe.
class CudaWorkspace {
 public:
  // Chooses the GPU for the calling thread. `stream` must outlive this.
  CudaWorkspace(int gpu, CudaStream& stream);
  CudaWorkspace(const CudaWorkspace&) = delete;
  CudaWorkspace& operator=(const CudaWorkspace&) = delete;
  ~CudaWorkspace();

  CudaStream& stream() { return stream_; }
  // At least `bytes` that the next kernel may use.
  void* Get(int64_t bytes);

 private:
  CudaStream& stream_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace dsat::engine
