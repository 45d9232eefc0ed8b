// The functions of the .cu files that cuda_kernels.cc and cuda_optimizers.cc call. They use plain
// types, since nvcc's C++ front end does not compile fmt's format strings, which
// engine/core/tensor.h includes.
//
// engine/backend/layer_ops.h and optimizer_kernels.h say what each does. All run on the calling
// thread's stream, in the order of its calls. `workspace` is device memory of at least the bytes
// that the function of that name gives. The next call may use it again.
#ifndef DSAT_ENGINE_BACKEND_CUDA_LAUNCH_H_
#define DSAT_ENGINE_BACKEND_CUDA_LAUNCH_H_

#include <cstdint>

#include "engine/backend/step_scale.h"
#include "engine/backend/stochastic_rounding.h"

namespace dsat::engine::cuda {

// DType's values, and Tensor's fields.
enum class Type : uint8_t { kF32, kBF16, kF16 };
struct View {
  void* data = nullptr;
  int64_t n = 0;
  Type type = Type::kF32;

  float* f32() const { return static_cast<float*>(data); }
};

// elementwise.cu
void Fill(const View& t, float value);
void Convert(const View& dst, const View& src);
void Accumulate(const View& dst, const View& src);
void Scale(const View& t, float factor);
void Add(const View& y, const View& a, const View& b);
// *sum (device) = the sum of squares.
int64_t SumWorkspaceBytes();
void SumOfSquares(double* sum, const View& t, void* workspace);

// activation.cu
void GeluForward(const View& y, const View& x);
void GeluBackward(const View& dx, const View& dy, const View& x);
void ReluForward(const View& y, const View& x);
void ReluBackward(const View& dx, const View& dy, const View& x);
void SwigluForward(const View& y, const View& x, int64_t N, int64_t F);
void SwigluBackward(const View& dx, const View& dy, const View& x, int64_t N, int64_t F);

// linear.cu; ColumnWorkspaceBytes is that of SumColumns (column_sums.h).
int64_t ColumnWorkspaceBytes(int64_t N, int64_t C);
int64_t BiasGradWorkspaceBytes(int64_t M, int64_t N);
void BiasGrad(const View& db, const View& dy, int64_t M, int64_t N, void* workspace);
// y (M, N) += bias (N).
void AddBias(const View& y, const View& bias, int64_t M, int64_t N);

// norm.cu: layer norm if `mean` has data, else RMS norm, which has no bias.
struct NormArgs {
  View y = {}, mean = {}, rstd = {}, x = {}, weight = {}, bias = {};
  int64_t N = 0, C = 0;
  float eps = 0;
};
struct NormGradArgs {
  View dx = {}, dweight = {}, dbias = {}, dy = {};
  View x = {}, weight = {}, mean = {}, rstd = {};
  int64_t N = 0, C = 0;
  bool accumulate_dx = false;
};
void NormForward(const NormArgs& args);
int64_t NormWorkspaceBytes(int64_t N, int64_t C);
void NormBackward(const NormGradArgs& args, void* workspace);

// group_norm.cu
struct GroupShape {
  int64_t N = 0, P = 0, C = 0, G = 1;
};
void GroupNormForward(const NormArgs& args, const GroupShape& shape);
void GroupNormBackward(const NormGradArgs& args, const GroupShape& shape, void* workspace);

// embedding.cu
void EmbeddingForward(const View& y, const int32_t* tokens, const View& wte, const View& wpe,
                      int64_t B, int64_t T, int64_t C);
// N = B * T, at most 2^31 - 1.
int64_t EmbeddingWorkspaceBytes(int64_t N, int64_t C);
void EmbeddingBackward(const View& dwte, const View& dwpe, const View& dy, const int32_t* tokens,
                       int64_t B, int64_t T, int64_t C, void* workspace);
void TokenWindows(int32_t* windows, const int32_t* tokens, int64_t B, int64_t T, int64_t context);

// rotary.cu
inline constexpr int64_t kMaxRotaryPairs = 256;
struct RotaryArgs {
  int64_t B = 0, T = 0, stride = 0, heads = 0, head_channels = 0;
  float frequencies[kMaxRotaryPairs] = {};
  float sign = 1;
};
void RotateInPlace(const View& x, const RotaryArgs& args);

// attention.cu
inline constexpr int64_t kMaxHeadChannels = 256;
struct AttentionArgs {
  View out = {}, lse = {}, qkv = {};      // Forward writes out and lse.
  View dqkv = {}, dout = {}, delta = {};  // Backward; delta (B, H, T) f32 is scratch.
  int64_t B = 0, T = 0, C = 0, H = 0, G = 0;
};
void AttentionForward(const AttentionArgs& args);
// Whether a block of this GPU has enough shared memory for the backward pass.
bool AttentionBackwardHasRoom(const AttentionArgs& args);
void AttentionBackward(const AttentionArgs& args);

// cross_entropy.cu; *loss (device), if given, is the mean of the losses.
int64_t LossWorkspaceBytes(int64_t N);
void CrossEntropyInPlace(double* loss, const View& logits, const int32_t* targets, int64_t N,
                         int64_t V, int64_t V_used, float grad_scale, void* workspace);

// optimizer.cu
struct Update {
  View param, master, grad;
  View m, v;  // Or momentum buffer, or sum of squares, in `m`.
  float lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  const StepScale* scale = nullptr;
  bool rounds_at_random = false;  // AdamStep; by `rounding`.
  RoundingBits rounding;
};
// As the CPU backend prepares them: decoupled decay multiplies by `shrink`, the other adds `l2`.
struct AdamFactors {
  float shrink = 1, l2 = 0, step_size = 0, v_scale = 1;
};
struct SgdFactors {
  float momentum = 0, dampening = 0;
  bool nesterov = false, first = false;
};
void FindStepScale(StepScale* scale, const double* squares, int64_t rows, int64_t cols,
                   const ClipSettings& settings);
void AdamStep(const Update& update, const AdamFactors& factors);
void SgdStep(const Update& update, const SgdFactors& factors);
void AdagradStep(const Update& update);
void LionStep(const Update& update);
// sums[0], sums[1] (device) = LambSums. SumWorkspaceBytes, twice.
void LambMoments(double* sums, const Update& update, void* workspace);
void LambApply(const Update& update, float step_size);
void MomentumStep(const Update& update);
void FrozenAdamStep(const Update& update);

// one_bit.cu; SumWorkspaceBytes.
void CompressSigns(const View& error, uint8_t* signs, float* scale, const View& values,
                   void* workspace);
void DecompressSigns(const View& values, const uint8_t* signs, const float* scale, float factor,
                     bool accumulate);

// image.cu
struct Conv {
  int64_t N = 0, H = 0, W = 0, in = 0, out = 0, kernel = 0, stride = 0, out_h = 0, out_w = 0;
};
void ConvForward(const View& y, const View& x, const View& weight, const Conv& conv);
void ConvInputGrad(const View& dx, const View& dy, const View& weight, const Conv& conv);
void ConvWeightGrad(const View& dweight, const View& dy, const View& x, const Conv& conv);
void MeanPoolForward(const View& y, const View& x, int64_t N, int64_t P, int64_t C);
void MeanPoolBackward(const View& dx, const View& dy, int64_t N, int64_t P, int64_t C);

}  // namespace dsat::engine::cuda

#endif  // DSAT_ENGINE_BACKEND_CUDA_LAUNCH_H_
