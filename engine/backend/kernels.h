// Every kernel once, with shapes. A backend is a folder that implements this interface.
//
// Tensors and pointers refer to memory of the backend's device. Only its kernels, its process group
// and the copies below touch that memory, and they accept no other. On a CPU it is host memory.
//
// Tensors are row-major and dense; images are (N, height, width, channels). Activations, parameters
// and gradients of one model have one dtype (f32, bf16 or f16); statistics (mean, rstd, lse) are
// always f32, optimizer states but for AdamStep's; sums are formed in f32. Gradients of parameters
// are accumulated (+=), gradients of activations are written (=), unless a comment says otherwise.
// An empty gradient tensor is not computed. Kernels throw nothing except kUnavailable if a GPU
// fails. They keep the workspace that they need beyond their arguments from call to call. The CPU
// backend's results do not depend on the number of threads, bit for bit.
//
// Every thread has its own stream. Kernels, copies and collectives that one thread asks for run in
// the order of its calls, possibly long after the calls return; those of several threads run
// concurrently. A thread that uses what another thread's calls write waits for an event.
#ifndef DSAT_ENGINE_BACKEND_KERNELS_H_
#define DSAT_ENGINE_BACKEND_KERNELS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/backend/stochastic_rounding.h"
#include "engine/core/device_kind.h"
#include "engine/core/tensor.h"
#include "engine/core/trace.h"

namespace dsat::engine {

// c (M, N) = op(a) (M, K) * op(b) (K, N) + bias + addend, rounded once, and what else can be
// computed before the result goes to memory. An empty tensor leaves its term out.
struct MatmulArgs {
  int64_t M = 0, N = 0, K = 0;
  Tensor a{};  // (M, K), or (K, M) if transpose_a
  Tensor b{};  // (K, N), or (N, K) if transpose_b
  Tensor c{};  // (M, N)
  bool transpose_a = false;
  bool transpose_b = false;
  Tensor bias = {};    // (N)
  Tensor addend = {};  // (M, N) of c's dtype; may be c, which is added to then.
  // At most one of these three.
  Tensor before_gelu = {};  // (M, N) of c's dtype: the sum is written here, and c = gelu of it.
  Tensor gelu_input = {};   // (M, N) of c's dtype: c = the sum * gelu'(gelu_input).
  Tensor column_sums = {};  // (N) of b's dtype: += the sums of b's columns. b is not transposed.

  void Check() const {
    const auto has = [](const Tensor& t, int64_t n, DType dtype) {
      return t.num_elems == 0 || (t.num_elems >= n && t.dtype == dtype);
    };
    DSAT_CHECK(M >= 0 && N >= 0 && K > 0, "{} x {} x {}", M, N, K);
    DSAT_CHECK(a.num_elems >= M * K && b.num_elems >= K * N && c.num_elems >= M * N,
               "{} x {} x {}: {}, {} and {} elements", M, N, K, a.num_elems, b.num_elems,
               c.num_elems);
    DSAT_CHECK(has(bias, N, bias.dtype) && has(addend, M * N, c.dtype) &&
                   has(before_gelu, M * N, c.dtype) && has(gelu_input, M * N, c.dtype) &&
                   has(column_sums, N, b.dtype),
               "{} x {} x {}: an operand of the epilogue does not fit the matrix multiplication", M,
               N, K);
    const auto wanted = [](const Tensor& t) { return t.num_elems > 0 ? 1 : 0; };
    DSAT_CHECK(wanted(before_gelu) + wanted(gelu_input) + wanted(column_sums) <= 1 &&
               (column_sums.num_elems == 0 || !transpose_b));
  }
};

// Causal self-attention over H heads of C / H channels, scaled by 1 / sqrt(C / H). Each of G heads
// of keys and values serves H / G consecutive heads of queries (Ainslie et al. 2023).
struct AttentionShape {
  int64_t B = 0, T = 0, C = 0, H = 0;
  int64_t G = 0;  // 0: H.

  int64_t HeadChannels() const { return C / H; }
  int64_t KvHeads() const { return G == 0 ? H : G; }
  int64_t KvChannels() const { return KvHeads() * HeadChannels(); }
  // Elements of a row of qkv.
  int64_t QkvChannels() const { return C + 2 * KvChannels(); }
};

// Which heads of x rotate: the first `heads` (of `head_channels` each) of every row of `stride`
// elements; rows are positions 0..T-1, B times.
struct RotaryShape {
  int64_t B = 0, T = 0, stride = 0, heads = 0, head_channels = 0;
};

// A convolution of images (N, H, W, in) with square weights (out, in, kernel, kernel); rows and
// columns of zeros around the image so that stride 1 keeps its size. kernel is odd.
struct ConvShape {
  int64_t N = 0, H = 0, W = 0, in = 0, out = 0;
  int64_t kernel = 3, stride = 1;

  int64_t OutH() const { return (H + stride - 1) / stride; }
  int64_t OutW() const { return (W + stride - 1) / stride; }
  int64_t NumIn() const { return N * H * W * in; }
  int64_t NumOut() const { return N * OutH() * OutW() * out; }
  int64_t NumWeights() const { return out * in * kernel * kernel; }
};

// Normalization of images (N, P, C), P pixels: over each image's pixels and C / G channels.
struct GroupNormShape {
  int64_t N = 0, P = 0, C = 0, G = 1;
  int64_t NumElems() const { return N * P * C; }
};

struct AdamArgs {
  Tensor param{};   // (n) written; the parameter in the model's dtype
  Tensor master{};  // (n) f32; read and written. The same memory as `param` if the model is f32.
  Tensor grad{};    // (n)
  Tensor m{};       // (n) f32
  Tensor v{};       // (n) f32
  // AdamStep only: if `param` and `grad` are bf16, `master` may be bf16, too, in `param`'s memory
  // or its own; then `m` and `v` may also be bf16. Arithmetic is f32; each is rounded once, when it
  // is written.
  float lr = 0, beta1 = 0.9F, beta2 = 0.999F, eps = 1e-8F, weight_decay = 0;
  bool decoupled_weight_decay = true;  // AdamW; false: L2 added to the gradient (Adam)
  bool bias_correction = true;
  int64_t step = 1;      // 1 at the first update
  float grad_scale = 1;  // multiplies the gradient first (clipping, loss scale, averaging)
  // AdamStep only: stochastic rounding of `param`, which is then bf16, and of a bf16 `master`.
  // Without it both are rounded to nearest.
  std::optional<RoundingBits> rounding = {};
};

struct SgdArgs {
  Tensor param{}, master{}, grad{};  // as in AdamArgs
  Tensor momentum_buffer{};          // (n) f32; empty if momentum == 0
  float lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  int64_t step = 1;
  float grad_scale = 1;
};

// Bytes moved between device and host memory.
struct TierTraffic {
  int64_t to_host_bytes = 0;
  int64_t to_device_bytes = 0;
  bool operator==(const TierTraffic&) const = default;
};

struct AdagradArgs {
  Tensor param{}, master{}, grad{};  // as in AdamArgs
  Tensor sum{};                      // (n) f32, of squared gradients
  float lr = 0, eps = 1e-10F, weight_decay = 0;
  float grad_scale = 1;
};

struct LionArgs {
  Tensor param{}, master{}, grad{};  // as in AdamArgs
  Tensor m{};                        // (n) f32
  float lr = 0, beta1 = 0.9F, beta2 = 0.99F, weight_decay = 0;
  float grad_scale = 1;
};

// Sums of squares, for LAMB's trust ratio; 0 from the counting backend.
struct LambSums {
  double param = 0;
  double direction = 0;
};

// A point in the work that a thread has asked a device for; nullptr: all of it is done.
using StreamEvent = std::shared_ptr<void>;

class Kernels : public TracedDevice {
 public:
  // Bytes of device memory that the backend always keeps for itself.
  virtual int64_t WorkspaceBytes() const { return 0; }

  // The number of floating-point operations asked for so far: 2 M N K per matmul, attention as full
  // (not causal) matrix multiplications, 2 out in kernel^2 per pixel of a convolution. Nothing else
  // counts (DeepSpeed's convention).
  int64_t flops() const { return flops_; }

  // RecordEvent returns an event at the point that the calling thread's stream has reached.
  // WaitEvent makes all that the calling thread asks for from here on wait for the event, without
  // blocking itself. QueryEvent tells whether all work before the event is done. Thread-safe.
  virtual StreamEvent RecordEvent() { return nullptr; }
  virtual void WaitEvent(const StreamEvent&) {}
  virtual bool QueryEvent(const StreamEvent&) { return true; }

  // Copy bytes to the device and from it. When they return, the copy and all that the calling
  // thread has asked for before are done; another thread makes the copies that shall run beside
  // computing. They serve the input and output of a step: batches, logits, checkpoints. These two
  // and the next two are thread-safe.
  virtual void Upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void Download(void* host, const void* device, int64_t bytes) = 0;

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

  // From now on `trace` records the copies between tiers, and the work of the backend's own queues
  // in spans (TracedDevice; a CPU has no queues). nullptr ends the recording, after which the trace
  // is complete. REQUIRES: no work is under way.
  virtual void set_trace(Trace* trace) {
    trace_ = trace;
    if (trace != nullptr) trace->Lane(kCopyLane);
  }

  virtual void Fill(Tensor t, float value) = 0;
  // dst (n) = src (n), converting dtypes.
  virtual void Cast(Tensor dst, Tensor src) = 0;
  // dst (n) += src (n), any dtypes.
  virtual void Accumulate(Tensor dst, Tensor src) = 0;
  virtual void Scale(Tensor t, float factor) = 0;
  // Sum of squares of t (n) in double; inf or NaN if any element is. 0 from the counting backend.
  virtual double SumOfSquares(Tensor t) = 0;

  virtual void Matmul(const MatmulArgs& args) = 0;

  // y (N, C) = LayerNorm(x (N, C)) * weight (C) + bias (C), eps 1e-5; saves mean (N), rstd (N).
  virtual void LayerNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                Tensor bias, int64_t N, int64_t C) = 0;
  // dx (N, C) = or, if accumulate_dx, +=; dweight (C), dbias (C) +=.
  virtual void LayerNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                                 Tensor weight, Tensor mean, Tensor rstd, int64_t N, int64_t C,
                                 bool accumulate_dx) = 0;

  // y (N, C) = x (N, C) / rms(x) * weight (C), rms(x)^2 = mean(x^2) + eps (Zhang and Sennrich
  // 2019); saves rstd (N) = 1 / rms.
  virtual void RmsNormForward(Tensor y, Tensor rstd, Tensor x, Tensor weight, int64_t N, int64_t C,
                              float eps) = 0;
  // dx (N, C) = or, if accumulate_dx, +=; dweight (C) +=.
  virtual void RmsNormBackward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight,
                               Tensor rstd, int64_t N, int64_t C, bool accumulate_dx) = 0;

  // y = GroupNorm(x) * weight (C) + bias (C), eps 1e-5 (Wu and He 2018); saves mean, rstd (N, G).
  virtual void GroupNormForward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                Tensor bias, const GroupNormShape& shape) = 0;
  // dx written, may be dy; dweight (C), dbias (C) +=.
  virtual void GroupNormBackward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                                 Tensor weight, Tensor mean, Tensor rstd,
                                 const GroupNormShape& shape) = 0;

  // GELU with the tanh approximation (Hendrycks and Gimpel 2016; GPT-2's gelu_new).
  virtual void GeluForward(Tensor y, Tensor x) = 0;
  // dx = dy * gelu'(x); dx may be dy.
  virtual void GeluBackward(Tensor dx, Tensor dy, Tensor x) = 0;
  virtual void ReluForward(Tensor y, Tensor x) = 0;
  virtual void ReluBackward(Tensor dx, Tensor dy, Tensor x) = 0;
  // y (N, F) = silu(a) * b of x (N, 2F) as [a | b], silu(a) = a * sigmoid(a) (Shazeer 2020,
  // SwiGLU).
  virtual void SwigluForward(Tensor y, Tensor x, int64_t N, int64_t F) = 0;
  // dx (N, 2F) = from dy (N, F).
  virtual void SwigluBackward(Tensor dx, Tensor dy, Tensor x, int64_t N, int64_t F) = 0;
  // y (n) = a (n) + b (n); y may be a.
  virtual void Add(Tensor y, Tensor a, Tensor b) = 0;

  // y (B, T, C) = wte[tokens] + wpe[0..T); wpe may be empty. tokens (B, T) in [0, V).
  virtual void EmbeddingForward(Tensor y, const int32_t* tokens, Tensor wte, Tensor wpe, int64_t B,
                                int64_t T, int64_t C) = 0;
  virtual void EmbeddingBackward(Tensor dwte, Tensor dwpe, Tensor dy, const int32_t* tokens,
                                 int64_t B, int64_t T, int64_t C) = 0;

  // windows (B * T, context): for each token the `context` tokens up to it, oldest first; 0 before
  // the start of its sequence. tokens (B, T).
  virtual void TokenWindows(int32_t* windows, const int32_t* tokens, int64_t B, int64_t T,
                            int64_t context) = 0;

  // Rotates the pair (i, i + hd/2) of each head at position t by the angle t * frequencies[i], or
  // by its negative (the gradient); in place. frequencies (hd/2), in host memory. Su et al. 2021,
  // in the half-split order of Hugging Face's Llama.
  virtual void RotateInPlace(Tensor x, std::span<const float> frequencies, bool negative,
                             const RotaryShape& shape) = 0;

  // y (N, OutH, OutW, out) = the convolution.
  virtual void ConvForward(Tensor y, Tensor x, Tensor weight, const ConvShape& shape) = 0;
  // dx (N, H, W, in) =.
  virtual void ConvInputGrad(Tensor dx, Tensor dy, Tensor weight, const ConvShape& shape) = 0;
  // dweight (out, in, kernel, kernel) +=.
  virtual void ConvWeightGrad(Tensor dweight, Tensor dy, Tensor x, const ConvShape& shape) = 0;
  // y (N, C) = the mean of x (N, P, C) over P pixels.
  virtual void MeanPoolForward(Tensor y, Tensor x, int64_t N, int64_t P, int64_t C) = 0;
  // dx (N, P, C) = dy (N, C) / P.
  virtual void MeanPoolBackward(Tensor dx, Tensor dy, int64_t N, int64_t P, int64_t C) = 0;

  // Bytes of f32 scratch that both attention kernels need.
  virtual int64_t AttentionScratchBytes(const AttentionShape& shape) = 0;
  // out (B, T, C); qkv (B, T, QkvChannels) as [q | k | v], heads side by side; lse (B, H, T) f32
  // saved.
  virtual void AttentionForward(Tensor out, Tensor lse, Tensor qkv, Tensor scratch,
                                const AttentionShape& shape) = 0;
  // dqkv as qkv, written. Probabilities are recomputed from qkv and lse (FlashAttention,
  // Dao et al. 2022, section 3).
  virtual void AttentionBackward(Tensor dqkv, Tensor dout, Tensor out, Tensor qkv, Tensor lse,
                                 Tensor scratch, const AttentionShape& shape) = 0;

  // Softmax and cross entropy over N rows of V classes, in place: logits (N, V) become
  // grad_scale * dloss/dlogits. Columns [V_used, V) are padding: probability and gradient 0.
  // Returns the sum of the N losses, in nats.
  virtual double CrossEntropyInPlace(Tensor logits, const int32_t* targets, int64_t N, int64_t V,
                                     int64_t V_used, float grad_scale) = 0;

  virtual void AdamStep(const AdamArgs& args) = 0;
  virtual void SgdStep(const SgdArgs& args) = 0;
  // sum += grad^2; param -= lr grad / (sqrt(sum) + eps) (Duchi et al. 2011). Weight decay is L2.
  virtual void AdagradStep(const AdagradArgs& args) = 0;
  // param -= lr (sign(beta1 m + (1 - beta1) grad) + weight_decay param), sign(0) = 0; then
  // m = beta2 m + (1 - beta2) grad (Chen et al. 2023).
  virtual void LionStep(const LionArgs& args) = 0;

  // LAMB (You et al. 2020) in the form of DeepSpeed's FusedLamb, in two halves, since every
  // parameter's norms are needed in between. The direction is m / (sqrt(v) + eps) + weight_decay
  // param, not bias-corrected. The kind of weight decay in `args` is ignored.
  //
  // Updates m and v; param is not written. Returns the sums over `args`' elements.
  virtual LambSums LambMoments(const AdamArgs& args) = 0;
  // param -= step size * trust_ratio * direction, with the m and v of LambMoments; the step size is
  // lr, times sqrt(1 - beta2^step) / (1 - beta1^step) if bias_correction.
  virtual void LambApply(const AdamArgs& args, float trust_ratio) = 0;

  // 1-bit Adam (Tang et al. 2021): ranks exchange signs of momentum; the variance is constant.
  //
  // m = beta1 m + (1 - beta1) grad; nothing else is written.
  virtual void MomentumStep(const AdamArgs& args) = 0;
  // param -= lr (m / (sqrt(v) + eps) + weight_decay param); m and v are not written, grad is not
  // read. The first term is 0 where v is 0: an element that never had a gradient has no direction,
  // whatever sign was exchanged for its momentum.
  virtual void FrozenAdamStep(const AdamArgs& args) = 0;
  // With x (n) = values (n) + error (n), both f32, and *scale = |x| / sqrt(n): bit i % 8 of byte
  // i / 8 of `signs` is 1 where x[i] >= 0, and error[i] becomes x[i] minus *scale times that sign.
  // REQUIRES: n is a multiple of 8. values may not be error.
  virtual void CompressSigns(Tensor error, uint8_t* signs, float* scale, Tensor values) = 0;
  // values (n) f32 = or, if `accumulate`, += factor * *scale where the bit is 1, minus that
  // elsewhere.
  virtual void DecompressSigns(Tensor values, const uint8_t* signs, const float* scale,
                               float factor, bool accumulate) = 0;

 protected:
  int64_t flops_ = 0;
  Trace* trace_ = nullptr;

 private:
  static constexpr char kCopyLane[] = "copies";

  TraceEvent CopyEvent(const char* name, int64_t bytes, const char* lane) const {
    return {.lane = trace_ == nullptr ? 0 : trace_->Lane(lane), .name = name, .bytes = bytes};
  }

  std::atomic<int64_t> to_host_bytes_ = 0;
  std::atomic<int64_t> to_device_bytes_ = 0;
};

// oneDNN's matrix multiplications and vectorized loops of our own, on `num_threads` OpenMP threads.
std::unique_ptr<Kernels> MakeCpuKernels(int num_threads);
// Computes nothing and counts FLOPs. Scratch and workspace sizes are those of the backend that it
// predicts: the CPU's with `num_threads`, or CUDA's, and then it throws kUnimplemented for the same
// attention as CUDA.
std::unique_ptr<Kernels> MakeCountingKernels(int num_threads, DeviceKind kind = DeviceKind::kCpu);

// Scratch bytes of CPU attention, per thread: a tile of scores and one of their gradients, 128
// query rows of T keys each in f32, and the (T, C / H) slices of a head (q, k, v, dout, dq, dk, dv)
// unless they can be used in place. Shared by the CPU and the counting backend.
int64_t CpuAttentionScratchBytes(const AttentionShape& shape, int num_threads);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_KERNELS_H_
