// The backend that computes nothing: the same calls, the same FLOPs and scratch sizes, no data. A
// plan that runs on it is a prediction.
#include <memory>

#include "engine/backend/any_kernels.h"
#include "engine/backend/cost.h"
#include "engine/backend/stream.h"
#include "engine/core/device_kind.h"

namespace dsat::engine {
namespace {

class CountingStream final : public Stream {
 public:
  void Upload(void*, const void*, int64_t) override {}
  void Download(void*, const void*, int64_t) override {}
};

class CountingKernels final : public AnyKernels<CountingKernels> {
 public:
  CountingKernels(int num_threads, DeviceKind kind) : num_threads_(num_threads), kind_(kind) {}

  int64_t WorkspaceBytes() const override {
    return kind_ == DeviceKind::kCuda ? kCudaWorkspaceBytes : 0;
  }
  int64_t AttentionScratchBytes(const AttentionShape& shape) const override {
    return kind_ == DeviceKind::kCuda ? CudaAttentionScratchBytes(shape)
                                      : CpuAttentionScratchBytes(shape, num_threads_);
  }
  void RunAny(const auto&) {}

 private:
  int num_threads_;
  DeviceKind kind_;
};

}  // namespace

std::unique_ptr<Kernels> MakeCountingKernels(int num_threads, DeviceKind kind) {
  return std::make_unique<Kernels>(std::make_unique<CountingStream>(),
                                   std::make_unique<CountingKernels>(num_threads, kind));
}

}  // namespace dsat::engine
