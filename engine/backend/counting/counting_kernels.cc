// The backend that computes nothing: the same calls, the same FLOPs and scratch sizes, no data. A
// plan that runs on it is a prediction.
#include <memory>

#include "engine/backend/cost.h"
#include "engine/backend/kernels.h"

namespace dsat::engine {
namespace {

class CountingKernels : public Kernels {
 public:
  CountingKernels(int num_threads, DeviceKind kind) : num_threads_(num_threads), kind_(kind) {}

  int64_t WorkspaceBytes() const override { return on_cuda() ? kCudaWorkspaceBytes : 0; }

  void Upload(void*, const void*, int64_t) override {}
  void Download(void*, const void*, int64_t) override {}
  void Fill(Tensor, float) override {}
  void Cast(Tensor, Tensor) override {}
  void Accumulate(Tensor, Tensor) override {}
  void Scale(Tensor, float) override {}
  double SumOfSquares(Tensor) override { return 0; }

  void Matmul(const MatmulArgs& args) override {
    args.Check();
    flops_ += MatmulFlops(args);
  }

  void LayerNormForward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int64_t, int64_t) override {
  }
  void LayerNormBackward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int64_t,
                         int64_t, bool) override {}

  void RmsNormForward(Tensor, Tensor, Tensor, Tensor, int64_t, int64_t, float) override {}
  void RmsNormBackward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int64_t, int64_t,
                       bool) override {}
  void GroupNormForward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                        const GroupNormShape&) override {}
  void GroupNormBackward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                         const GroupNormShape&) override {}

  void GeluForward(Tensor, Tensor) override {}
  void GeluBackward(Tensor, Tensor, Tensor) override {}
  void ReluForward(Tensor, Tensor) override {}
  void ReluBackward(Tensor, Tensor, Tensor) override {}
  void SwigluForward(Tensor, Tensor, int64_t, int64_t) override {}
  void SwigluBackward(Tensor, Tensor, Tensor, int64_t, int64_t) override {}
  void Add(Tensor, Tensor, Tensor) override {}

  void EmbeddingForward(Tensor, const int32_t*, Tensor, Tensor, int64_t, int64_t,
                        int64_t) override {}
  void EmbeddingBackward(Tensor, Tensor, Tensor, const int32_t*, int64_t, int64_t,
                         int64_t) override {}
  void TokenWindows(int32_t*, const int32_t*, int64_t, int64_t, int64_t) override {}

  void RotateInPlace(Tensor, std::span<const float>, bool, const RotaryShape&) override {}

  void ConvForward(Tensor, Tensor, Tensor, const ConvShape& shape) override {
    flops_ += ConvFlops(shape);
  }
  void ConvInputGrad(Tensor, Tensor, Tensor, const ConvShape& shape) override {
    flops_ += ConvFlops(shape);
  }
  void ConvWeightGrad(Tensor, Tensor, Tensor, const ConvShape& shape) override {
    flops_ += ConvFlops(shape);
  }
  void MeanPoolForward(Tensor, Tensor, int64_t, int64_t, int64_t) override {}
  void MeanPoolBackward(Tensor, Tensor, int64_t, int64_t, int64_t) override {}

  int64_t AttentionScratchBytes(const AttentionShape& shape) override {
    return on_cuda() ? CudaAttentionScratchBytes(shape)
                     : CpuAttentionScratchBytes(shape, num_threads_);
  }
  void AttentionForward(Tensor, Tensor, Tensor, Tensor, const AttentionShape& shape) override {
    flops_ += AttentionForwardFlops(shape);
  }
  void AttentionBackward(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                         const AttentionShape& shape) override {
    flops_ += AttentionBackwardFlops(shape);
  }

  double CrossEntropyInPlace(Tensor, const int32_t*, int64_t, int64_t, int64_t, float) override {
    return 0;
  }

  void AdamStep(const AdamArgs&) override {}
  void SgdStep(const SgdArgs&) override {}
  void AdagradStep(const AdagradArgs&) override {}
  void LionStep(const LionArgs&) override {}
  LambSums LambMoments(const AdamArgs&) override { return {}; }
  void LambApply(const AdamArgs&, float) override {}
  void MomentumStep(const AdamArgs&) override {}
  void FrozenAdamStep(const AdamArgs&) override {}
  void CompressSigns(Tensor, uint8_t*, float*, Tensor) override {}
  void DecompressSigns(Tensor, const uint8_t*, const float*, float, bool) override {}

 private:
  bool on_cuda() const { return kind_ == DeviceKind::kCuda; }

  int num_threads_;
  DeviceKind kind_;
};

}  // namespace

std::unique_ptr<Kernels> MakeCountingKernels(int num_threads, DeviceKind kind) {
  return std::make_unique<CountingKernels>(num_threads, kind);
}

}  // namespace dsat::engine
