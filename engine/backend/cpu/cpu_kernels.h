// The CPU backend. Each family of kernels is in a file of its own.
#ifndef DSAT_ENGINE_BACKEND_CPU_CPU_KERNELS_H_
#define DSAT_ENGINE_BACKEND_CPU_CPU_KERNELS_H_

#include <cstdint>

#include "engine/backend/cpu/convolution.h"
#include "engine/backend/cpu/matmul.h"
#include "engine/backend/cpu/rotary.h"
#include "engine/backend/cpu/scratch.h"
#include "engine/backend/kernels.h"

namespace dsat::engine {

// Results do not depend on num_threads. Not thread-safe: one per rank.
class CpuKernels : public Kernels {
 public:
  explicit CpuKernels(int num_threads);

  // elementwise.cc
  void Upload(void* device, const void* host, int64_t bytes) override;
  void Download(void* host, const void* device, int64_t bytes) override;
  void Fill(Tensor t, float value) override;
  void Cast(Tensor dst, Tensor src) override;
  void Accumulate(Tensor dst, Tensor src) override;
  void Scale(Tensor t, float factor) override;
  double SumOfSquares(Tensor t) override;
  void Add(Tensor y, Tensor a, Tensor b) override;

  // activation.cc
  void GeluForward(Tensor y, Tensor x) override;
  void GeluBackward(Tensor dx, Tensor dy, Tensor x) override;
  void ReluForward(Tensor y, Tensor x) override;
  void ReluBackward(Tensor dx, Tensor dy, Tensor x) override;

  // linear.cc
  void Matmul(const MatmulArgs& args) override;

  // layer_norm.cc
  void LayerNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight, Tensor bias,
                        int64_t N, int64_t C) override;
  void LayerNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                         Tensor weight, Tensor mean, Tensor rstd, int64_t N, int64_t C,
                         bool accumulate_dx) override;

  // rms_norm.cc
  void RmsNormForward(Tensor y, Tensor rstd, Tensor x, Tensor weight, int64_t N, int64_t C,
                      float eps) override;
  void RmsNormBackward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight, Tensor rstd,
                       int64_t N, int64_t C, bool accumulate_dx) override;

  // group_norm.cc
  void GroupNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight, Tensor bias,
                        const GroupNormShape& shape) override;
  void GroupNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                         Tensor weight, Tensor mean, Tensor rstd,
                         const GroupNormShape& shape) override;

  // swiglu.cc
  void SwigluForward(Tensor y, Tensor x, int64_t N, int64_t F) override;
  void SwigluBackward(Tensor dx, Tensor dy, Tensor x, int64_t N, int64_t F) override;

  // rotary.cc
  void RotateInPlace(Tensor x, std::span<const float> frequencies, bool negative,
                     const RotaryShape& shape) override;

  // image.cc
  void ConvForward(Tensor y, Tensor x, Tensor weight, const ConvShape& shape) override;
  void ConvInputGrad(Tensor dx, Tensor dy, Tensor weight, const ConvShape& shape) override;
  void ConvWeightGrad(Tensor dweight, Tensor dy, Tensor x, const ConvShape& shape) override;
  void MeanPoolForward(Tensor y, Tensor x, int64_t N, int64_t P, int64_t C) override;
  void MeanPoolBackward(Tensor dx, Tensor dy, int64_t N, int64_t P, int64_t C) override;

  // embedding.cc
  void EmbeddingForward(Tensor y, const int32_t* tokens, Tensor wte, Tensor wpe, int64_t B,
                        int64_t T, int64_t C) override;
  void EmbeddingBackward(Tensor dwte, Tensor dwpe, Tensor dy, const int32_t* tokens, int64_t B,
                         int64_t T, int64_t C) override;
  void TokenWindows(int32_t* windows, const int32_t* tokens, int64_t B, int64_t T,
                    int64_t context) override;

  // attention.cc
  int64_t AttentionScratchBytes(const AttentionShape& shape) override;
  void AttentionForward(Tensor out, Tensor lse, Tensor qkv, Tensor scratch,
                        const AttentionShape& shape) override;
  void AttentionBackward(Tensor dqkv, Tensor dout, Tensor out, Tensor qkv, Tensor lse,
                         Tensor scratch, const AttentionShape& shape) override;

  // cross_entropy.cc
  double CrossEntropyInPlace(Tensor logits, const int32_t* targets, int64_t N, int64_t V,
                             int64_t V_used, float grad_scale) override;

  // optimizer.cc
  void AdamStep(const AdamArgs& args) override;
  void SgdStep(const SgdArgs& args) override;
  void AdagradStep(const AdagradArgs& args) override;
  void LionStep(const LionArgs& args) override;

  // lamb.cc
  LambSums LambMoments(const AdamArgs& args) override;
  void LambApply(const AdamArgs& args, float trust_ratio) override;

  // one_bit.cc
  void MomentumStep(const AdamArgs& args) override;
  void FrozenAdamStep(const AdamArgs& args) override;
  void CompressSigns(Tensor error, uint8_t* signs, float* scale, Tensor values) override;
  void DecompressSigns(Tensor values, const uint8_t* signs, const float* scale, float factor,
                       bool accumulate) override;

 private:
  // sums (N) += the sums of the columns of x (M, N), of one dtype. linear.cc
  void AddColumnSums(Tensor sums, Tensor x, int64_t M, int64_t N);
  // Whether the matrix multiplications of attention over `qkv` have bf16 operands.
  bool AttendsInBf16(const Tensor& qkv) const;

  int num_threads_;
  MatmulRunner matmul_;
  ConvRunner conv_;
  RotaryTable rotary_table_;
  Scratch scratch_;  // Partial sums and row indices of one kernel call.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_CPU_KERNELS_H_
