// Events, copies and workspace of the CUDA backend.
#include "engine/backend/cuda/cuda_stream.h"

#include <algorithm>
#include <cstring>

#include "engine/backend/cost.h"
#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/launch_kernel.h"

namespace dsat::engine {
namespace {

// A stream that does not wait for the legacy stream, nor that for it.
class CudaQueue final : public Queue {
 public:
  CudaQueue(int gpu, std::shared_ptr<EventPool> events) : gpu_(gpu), events_(std::move(events)) {
    CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              "cudaStreamCreateWithFlags");
  }
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;
  ~CudaQueue() override { cudaStreamDestroy(stream_); }

  void* handle() const override { return stream_; }
  void WaitEvent(const StreamEvent& event) override {
    CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
    CheckCuda(cudaStreamWaitEvent(stream_, EventOf(event), 0), "cudaStreamWaitEvent");
  }
  StreamEvent RecordEvent() override {
    CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
    return events_->Record(stream_);
  }

 private:
  const int gpu_;
  const std::shared_ptr<EventPool> events_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

// Events and copies come from any thread, and a new one has no GPU chosen yet.
StreamEvent CudaStream::RecordEvent() {
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  return events_->Record(cuda::Stream());
}

StreamEvent CudaStream::RecordTime() {
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  return timed_events_->Record(cuda::Stream());
}

std::shared_ptr<Queue> CudaStream::MakeQueue() {
  return std::make_shared<CudaQueue>(gpu_, events_);
}

void CudaStream::WaitEvent(const StreamEvent& event) {
  if (event == nullptr) return;
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  CheckCuda(cudaStreamWaitEvent(cuda::Stream(), EventOf(event), 0), "cudaStreamWaitEvent");
}

void CudaStream::set_trace(Trace* trace) {
  Stream::set_trace(trace);
  times_.set_trace(trace);
}

CudaStream::~CudaStream() {
  for (const Stage& stage : stages_)
    cudaFreeHost(stage.data);
}

CudaStream::Stage CudaStream::TakeStage(int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    for (auto stage = stages_.begin(); stage != stages_.end(); ++stage) {
      if (stage->bytes < bytes || !engine::QueryEvent(stage->copied)) continue;
      const Stage taken = *stage;
      stages_.erase(stage);
      return taken;
    }
  }
  Stage stage;
  stage.bytes = bytes;
  if (cudaMallocHost(&stage.data, static_cast<size_t>(bytes)) != cudaSuccess) cudaGetLastError();
  return stage;
}

void CudaStream::UploadLater(void* device, const void* host, int64_t bytes) {
  if (bytes == 0) return;
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  Stage stage = TakeStage(bytes);
  if (stage.data == nullptr) return Upload(device, host, bytes);
  std::memcpy(stage.data, host, static_cast<size_t>(bytes));
  const cudaError_t error = cudaMemcpyAsync(device, stage.data, static_cast<size_t>(bytes),
                                            cudaMemcpyHostToDevice, cuda::Stream());
  stage.copied = events_->Record(cuda::Stream());
  {
    const std::lock_guard lock(mutex_);
    stages_.push_back(std::move(stage));
  }
  CheckCuda(error, "copy to the device");
}

// Not by cudaMemcpy, for which all threads' work would have to end.
void CudaStream::Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const {
  const char* call = kind == cudaMemcpyHostToDevice ? "copy to the device" : "copy to the host";
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  WaitWatched();  // A copy to pageable memory waits itself.
  CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, cuda::Stream()), call);
  CheckCuda(cudaStreamSynchronize(cuda::Stream()), call);
}

void CudaStream::WaitWatched() const {
  if (watches_->empty()) return;
  CheckCuda(cudaSetDevice(gpu_), "cudaSetDevice");
  const StreamEvent end = events_->Record(cuda::Stream());
  watches_->Wait([&] { return engine::QueryEvent(end); });
}

double MeasureOnGpu(const std::function<void()>& enqueue) {
  constexpr int kNumRuns = 3;
  const auto events = std::make_shared<EventPool>(cudaEventDefault);
  enqueue();
  const StreamEvent begin = events->Record(cuda::Stream());
  for (int i = 0; i < kNumRuns; ++i)
    enqueue();
  const StreamEvent end = events->Record(cuda::Stream());
  CheckCuda(cudaEventSynchronize(EventOf(end)), "cudaEventSynchronize");
  return MsBetween(begin, end) / kNumRuns;
}

CudaWorkspace::CudaWorkspace(int gpu, CudaStream& stream) : stream_(stream) {
  CheckCuda(cudaSetDevice(gpu), "cudaSetDevice");
}

CudaWorkspace::~CudaWorkspace() {
  cudaFree(data_);
}

void* CudaWorkspace::Get(int64_t bytes) {
  if (bytes > bytes_) {
    CheckCuda(cudaFree(data_), "cudaFree");
    data_ = nullptr;
    bytes_ = 0;
    const int64_t all_bytes = std::max(bytes, kCudaScratchBytes);
    data_ = AllocateOnGpu(static_cast<size_t>(all_bytes), "a kernel's workspace");
    bytes_ = all_bytes;
  }
  return data_;
}

}  // namespace dsat::engine
