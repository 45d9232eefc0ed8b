// The CUDA backend: one class, which checks operands and calls the .cu file of each family
// (launch.h).
#ifndef DSAT_ENGINE_BACKEND_CUDA_CUDA_KERNELS_H_
#define DSAT_ENGINE_BACKEND_CUDA_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "engine/backend/cost.h"
#include "engine/backend/cuda/event_pool.h"
#include "engine/backend/cuda/matmul.h"
#include "engine/backend/cuda/stream_times.h"
#include "engine/backend/kernels.h"

namespace dsat::engine {

// Returns why matrices cannot be multiplied here, or "".
std::string MissingLibrary();

// A thread's work on a GPU runs on CUDA's default stream of that thread, and its events are CUDA's.
// Results do not depend on timing. Every call throws kUnavailable naming the kernel if the GPU
// reports an error. Except for events, spans and copies not thread-safe: one per rank.
class CudaKernels final : public Kernels {
 public:
  explicit CudaKernels(int gpu);
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;
  ~CudaKernels() override;

  int64_t WorkspaceBytes() const override { return kCudaWorkspaceBytes; }
  StreamEvent RecordEvent() override;
  void WaitEvent(const StreamEvent& event) override;
  bool QueryEvent(const StreamEvent& event) override;
  void set_trace(Trace* trace) override;
  StreamEvent BeginSpan() override { return times_.BeginSpan(); }
  void EndSpan(StreamEvent begin, TraceEvent event) override;
  void Upload(void* device, const void* host, int64_t bytes) override;
  void Download(void* host, const void* device, int64_t bytes) override;
  void Fill(Tensor t, float value) override;
  void Cast(Tensor dst, Tensor src) override;
  void Accumulate(Tensor dst, Tensor src) override;
  void Scale(Tensor t, float factor) override;
  double SumOfSquares(Tensor t) override;
  void Add(Tensor y, Tensor a, Tensor b) override;

  void Matmul(const MatmulArgs& args) override;

  void LayerNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight, Tensor bias,
                        int64_t N, int64_t C) override;
  void LayerNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                         Tensor weight, Tensor mean, Tensor rstd, int64_t N, int64_t C,
                         bool accumulate_dx) override;
  void RmsNormForward(Tensor y, Tensor rstd, Tensor x, Tensor weight, int64_t N, int64_t C,
                      float eps) override;
  void RmsNormBackward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight, Tensor rstd,
                       int64_t N, int64_t C, bool accumulate_dx) override;
  void GroupNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight, Tensor bias,
                        const GroupNormShape& shape) override;
  void GroupNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                         Tensor weight, Tensor mean, Tensor rstd,
                         const GroupNormShape& shape) override;

  void GeluForward(Tensor y, Tensor x) override;
  void GeluBackward(Tensor dx, Tensor dy, Tensor x) override;
  void ReluForward(Tensor y, Tensor x) override;
  void ReluBackward(Tensor dx, Tensor dy, Tensor x) override;
  void SwigluForward(Tensor y, Tensor x, int64_t N, int64_t F) override;
  void SwigluBackward(Tensor dx, Tensor dy, Tensor x, int64_t N, int64_t F) override;

  void EmbeddingForward(Tensor y, const int32_t* tokens, Tensor wte, Tensor wpe, int64_t B,
                        int64_t T, int64_t C) override;
  void EmbeddingBackward(Tensor dwte, Tensor dwpe, Tensor dy, const int32_t* tokens, int64_t B,
                         int64_t T, int64_t C) override;
  void TokenWindows(int32_t* windows, const int32_t* tokens, int64_t B, int64_t T,
                    int64_t context) override;
  // REQUIRES: at most 256 frequencies.
  void RotateInPlace(Tensor x, std::span<const float> frequencies, bool negative,
                     const RotaryShape& shape) override;

  void ConvForward(Tensor y, Tensor x, Tensor weight, const ConvShape& shape) override;
  void ConvInputGrad(Tensor dx, Tensor dy, Tensor weight, const ConvShape& shape) override;
  void ConvWeightGrad(Tensor dweight, Tensor dy, Tensor x, const ConvShape& shape) override;
  void MeanPoolForward(Tensor y, Tensor x, int64_t N, int64_t P, int64_t C) override;
  void MeanPoolBackward(Tensor dx, Tensor dy, int64_t N, int64_t P, int64_t C) override;

  // Throws kUnimplemented if a head has more than kMaxCudaHeadChannels.
  int64_t AttentionScratchBytes(const AttentionShape& shape) override;
  void AttentionForward(Tensor out, Tensor lse, Tensor qkv, Tensor scratch,
                        const AttentionShape& shape) override;
  void AttentionBackward(Tensor dqkv, Tensor dout, Tensor out, Tensor qkv, Tensor lse,
                         Tensor scratch, const AttentionShape& shape) override;

  double CrossEntropyInPlace(Tensor logits, const int32_t* targets, int64_t N, int64_t V,
                             int64_t V_used, float grad_scale) override;

  void AdamStep(const AdamArgs& args) override;
  void SgdStep(const SgdArgs& args) override;
  void AdagradStep(const AdagradArgs& args) override;
  void LionStep(const LionArgs& args) override;
  LambSums LambMoments(const AdamArgs& args) override;
  void LambApply(const AdamArgs& args, float trust_ratio) override;
  void MomentumStep(const AdamArgs& args) override;
  void FrozenAdamStep(const AdamArgs& args) override;
  void CompressSigns(Tensor error, uint8_t* signs, float* scale, Tensor values) override;
  void DecompressSigns(Tensor values, const uint8_t* signs, const float* scale, float factor,
                       bool accumulate) override;

 private:
  void Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const;
  // The parts of Matmul.
  bool MultiplyFused(const MatmulArgs& args);
  void Multiply(MatmulArgs args);
  void MultiplyInF32(const MatmulArgs& args);
  void FinishProduct(const MatmulArgs& args);
  // Device memory of at least `bytes` that the next kernel may use.
  void* Workspace(int64_t bytes);

  int gpu_;
  const std::shared_ptr<EventPool> marks_;
  StreamTimes times_;
  CudaMatmul matmul_;
  double* sums_ = nullptr;  // Two numbers on the device that kernels give the host.
  void* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_CUDA_KERNELS_H_
