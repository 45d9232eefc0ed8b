// The kernels of layers, each a struct of its operands: what it computes, shapes and FLOPs.
//
// Tensors are row-major and dense; images are (N, height, width, channels). Activations, parameters
// and gradients of one model have one dtype (f32, bf16 or f16); statistics (mean, rstd, lse) are
// always f32; sums are formed in f32. Gradients of parameters are accumulated (+=), gradients of
// activations are written (=), unless a comment says otherwise. An empty gradient tensor is not
// computed.
//
// Every kernel has
//   Visit(on)      calls on(name, operand, n) for each operand in the device's memory, which has at
//                  least n elements;
// and, where the default is not right,
//   Check()        what else its caller must ensure (default: nothing);
//   IsEmpty()      whether there is nothing to compute (false);
//   Flops()        the floating-point operations that it counts (0).
// A `shape` has the first three for the kernels of that shape.
// engine/backend/kernels.h reads all of this once, for all backends.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>
#include <span>

#include "engine/core/model_parts.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

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
  // QK^T and PV as full (not causal) matrix multiplications, 2 B T T C each.
  int64_t ForwardFlops() const { return 4 * B * T * T * C; }
  void Check() const {
    DSAT_CHECK(H > 0 && C % H == 0 && H % KvHeads() == 0, "{} channels, {} heads, {} of keys", C, H,
               KvHeads());
  }
};

// Says which heads of x rotate: the first `heads` (of `head_channels` each) of every row of
// `stride` elements; rows are positions 0..T-1, B times.
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
  // 2 kernel^2 in out per pixel of the result; the same for each of the two gradients.
  int64_t Flops() const { return 2 * NumOut() * in * kernel * kernel; }
  bool IsEmpty() const { return N == 0; }
  void Check() const {
    DSAT_CHECK(kernel % 2 == 1 && stride > 0, "kernel {}, stride {}", kernel, stride);
  }
  auto operator<=>(const ConvShape&) const = default;
};

// Normalization of images (N, P, C), P pixels: over each image's pixels and C / G channels.
struct GroupNormShape {
  int64_t N = 0, P = 0, C = 0, G = 1;
  int64_t NumElems() const { return N * P * C; }
  bool IsEmpty() const { return N == 0; }
  void Check() const { DSAT_CHECK(G > 0 && C % G == 0, "{} channels, {} groups", C, G); }
};

// Types.
template <typename... Ops>
struct OpList {};

namespace op {

// n, or 0 for an operand that is left out.
inline int64_t IfGiven(const Tensor& t, int64_t n) {
  return t.num_elems == 0 ? 0 : n;
}

struct Fill {
  Tensor t;
  float value;
  void Visit(auto&& on) { on("t", t, 0); }
};

// dst (n) = src (n), converting dtypes.
struct Cast {
  Tensor dst, src;
  void Visit(auto&& on) { on("dst", dst, src.num_elems), on("src", src, dst.num_elems); }
};
// dst (n) += src (n), any dtypes.
struct Accumulate {
  Tensor dst, src;
  void Visit(auto&& on) { on("dst", dst, src.num_elems), on("src", src, dst.num_elems); }
};

struct Scale {
  Tensor t;
  float factor;
  void Visit(auto&& on) { on("t", t, 0); }
};

// *sum = the sum of squares of t (n) in double; inf or NaN if any element is.
struct SumOfSquares {
  double* sum;
  Tensor t;
  void Visit(auto&& on) { on("sum", sum, 1), on("t", t, 0); }
};

// y (n) = a (n) + b (n); y may be a.
struct Add {
  Tensor y, a, b;
  void Visit(auto&& on) {
    on("y", y, a.num_elems), on("a", a, b.num_elems), on("b", b, y.num_elems);
  }
};

// c (M, N) = op(a) (M, K) * op(b) (K, N) + bias + addend, summed in f32, and what else can be
// computed before the result goes to memory. The result is rounded once on a CPU; a GPU may round
// the product, and its sum with the bias or the addend, on the way. An empty tensor leaves its term
// out. The epilogue does not count.
struct Matmul {
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

  void Visit(auto&& on) {
    on("a", a, M * K), on("b", b, K * N), on("c", c, M * N), on("bias", bias, IfGiven(bias, N)),
        on("addend", addend, IfGiven(addend, M * N)),
        on("before_gelu", before_gelu, IfGiven(before_gelu, M * N)),
        on("gelu_input", gelu_input, IfGiven(gelu_input, M * N)),
        on("column_sums", column_sums, IfGiven(column_sums, N));
  }
  void Check() const {
    const auto wanted = [](const Tensor& t) { return t.num_elems > 0 ? 1 : 0; };
    const auto has = [&](const Tensor& t, DType dtype) { return !wanted(t) || t.dtype == dtype; };
    DSAT_CHECK(M >= 0 && N >= 0 && K > 0, "{} x {} x {}", M, N, K);
    DSAT_CHECK(has(addend, c.dtype) && has(before_gelu, c.dtype) && has(gelu_input, c.dtype) &&
                   has(column_sums, b.dtype),
               "{} x {} x {}: an operand of the epilogue has another dtype", M, N, K);
    DSAT_CHECK(wanted(before_gelu) + wanted(gelu_input) + wanted(column_sums) <= 1 &&
               (column_sums.num_elems == 0 || !transpose_b));
  }
  bool IsEmpty() const { return M * N == 0; }
  int64_t Flops() const { return 2 * M * N * K; }
};

// y (N, C) = LayerNorm(x (N, C)) * weight (C) + bias (C), eps 1e-5; saves mean (N), rstd (N).
struct LayerNormForward {
  Tensor y, mean, rstd, x, weight, bias;
  int64_t N, C;
  void Visit(auto&& on) {
    on("y", y, N * C), on("mean", mean, N), on("rstd", rstd, N), on("x", x, N * C),
        on("weight", weight, C), on("bias", bias, C);
  }
};

// dx (N, C) = or, if accumulate_dx, +=; dweight (C), dbias (C) +=.
struct LayerNormBackward {
  Tensor dx, dweight, dbias, dy, x, weight, mean, rstd;
  int64_t N, C;
  bool accumulate_dx;
  void Visit(auto&& on) {
    on("dx", dx, N * C), on("dweight", dweight, IfGiven(dweight, C)),
        on("dbias", dbias, IfGiven(dbias, C)), on("dy", dy, N * C), on("x", x, N * C),
        on("weight", weight, C), on("mean", mean, N), on("rstd", rstd, N);
  }
  bool IsEmpty() const { return N == 0; }
};

// y (N, C) = x (N, C) / rms(x) * weight (C), rms(x)^2 = mean(x^2) + eps (Zhang and Sennrich 2019);
// saves rstd (N) = 1 / rms.
struct RmsNormForward {
  Tensor y, rstd, x, weight;
  int64_t N, C;
  float eps;
  void Visit(auto&& on) {
    on("y", y, N * C), on("rstd", rstd, N), on("x", x, N * C), on("weight", weight, C);
  }
};

// dx (N, C) = or, if accumulate_dx, +=; dweight (C) +=.
struct RmsNormBackward {
  Tensor dx, dweight, dy, x, weight, rstd;
  int64_t N, C;
  bool accumulate_dx;
  void Visit(auto&& on) {
    on("dx", dx, N * C), on("dweight", dweight, IfGiven(dweight, C)), on("dy", dy, N * C),
        on("x", x, N * C), on("weight", weight, C), on("rstd", rstd, N);
  }
  bool IsEmpty() const { return N == 0; }
};

// y = GroupNorm(x) * weight (C) + bias (C), eps 1e-5 (Wu and He 2018); saves mean, rstd (N, G).
struct GroupNormForward {
  Tensor y, mean, rstd, x, weight, bias;
  GroupNormShape shape;
  void Visit(auto&& on) {
    on("y", y, shape.NumElems()), on("mean", mean, shape.N * shape.G),
        on("rstd", rstd, shape.N * shape.G), on("x", x, shape.NumElems()),
        on("weight", weight, shape.C), on("bias", bias, shape.C);
  }
};

// dx written, may be dy; dweight (C), dbias (C) +=.
struct GroupNormBackward {
  Tensor dx, dweight, dbias, dy, x, weight, mean, rstd;
  GroupNormShape shape;
  void Visit(auto&& on) {
    on("dx", dx, shape.NumElems()), on("dweight", dweight, IfGiven(dweight, shape.C)),
        on("dbias", dbias, IfGiven(dbias, shape.C)), on("dy", dy, shape.NumElems()),
        on("x", x, shape.NumElems()), on("weight", weight, shape.C),
        on("mean", mean, shape.N * shape.G), on("rstd", rstd, shape.N * shape.G);
  }
};

// y (n) = f(x (n)).
struct Activation {
  Tensor y, x;
  void Visit(auto&& on) { on("y", y, x.num_elems), on("x", x, y.num_elems); }
};
// dx (n) = dy (n) * f'(x (n)); dx may be dy.
struct ActivationGrad {
  Tensor dx, dy, x;
  void Visit(auto&& on) {
    on("dx", dx, dy.num_elems), on("dy", dy, x.num_elems), on("x", x, dx.num_elems);
  }
};

// GELU with the tanh approximation (Hendrycks and Gimpel 2016; GPT-2's gelu_new).
struct GeluForward : Activation {};
struct GeluBackward : ActivationGrad {};
struct ReluForward : Activation {};
struct ReluBackward : ActivationGrad {};

// y (N, F) = silu(a) * b of x (N, 2F) as [a | b], silu(a) = a * sigmoid(a) (Shazeer 2020, SwiGLU).
struct SwigluForward {
  Tensor y, x;
  int64_t N, F;
  void Visit(auto&& on) { on("y", y, N * F), on("x", x, 2 * N * F); }
};
// dx (N, 2F) = from dy (N, F).
struct SwigluBackward {
  Tensor dx, dy, x;
  int64_t N, F;
  void Visit(auto&& on) { on("dx", dx, 2 * N * F), on("dy", dy, N * F), on("x", x, 2 * N * F); }
};

// y (B, T, C) = wte[tokens] + wpe[0..T); wpe may be empty. tokens (B, T) in [0, V).
struct EmbeddingForward {
  Tensor y;
  const int32_t* tokens;
  Tensor wte, wpe;
  int64_t B, T, C;
  void Visit(auto&& on) {
    on("y", y, B * T * C), on("wte", wte, C), on("wpe", wpe, IfGiven(wpe, T * C)),
        on("tokens", tokens, B * T);
  }
};
struct EmbeddingBackward {
  Tensor dwte, dwpe, dy;
  const int32_t* tokens;
  int64_t B, T, C;
  void Visit(auto&& on) {
    on("dwte", dwte, C), on("dwpe", dwpe, IfGiven(dwpe, T * C)), on("dy", dy, B * T * C),
        on("tokens", tokens, B * T);
  }
  void Check() const {
    DSAT_CHECK(B * T <= std::numeric_limits<int32_t>::max(), "{} x {} tokens", B, T);
  }
};

// windows (B * T, context): for each token the `context` tokens up to it, oldest first; 0 before
// the start of its sequence. tokens (B, T).
struct TokenWindows {
  int32_t* windows;
  const int32_t* tokens;
  int64_t B, T, context;
  void Visit(auto&& on) { on("windows", windows, B * T * context), on("tokens", tokens, B * T); }
};

// Rotates the pair (i, i + hd/2) of each head at position t by the angle t * frequencies[i], or by
// its negative (the gradient); in place. frequencies (hd/2), in host memory. Su et al. 2021, in the
// half-split order of Hugging Face's Llama.
struct RotateInPlace {
  Tensor x;
  std::span<const float> frequencies;
  bool negative;
  RotaryShape shape;
  void Visit(auto&& on) { on("x", x, shape.B * shape.T * shape.stride); }
  void Check() const {
    DSAT_CHECK(2 * static_cast<int64_t>(frequencies.size()) == shape.head_channels &&
                   shape.heads * shape.head_channels <= shape.stride,
               "{} heads of {} channels in {}, {} frequencies", shape.heads, shape.head_channels,
               shape.stride, frequencies.size());
  }
};

// y (N, OutH, OutW, out) = the convolution.
struct ConvForward {
  Tensor y, x, weight;
  ConvShape shape;
  void Visit(auto&& on) {
    on("y", y, shape.NumOut()), on("x", x, shape.NumIn()), on("weight", weight, shape.NumWeights());
  }
};
// dx (N, H, W, in) =.
struct ConvInputGrad {
  Tensor dx, dy, weight;
  ConvShape shape;
  void Visit(auto&& on) {
    on("dx", dx, shape.NumIn()), on("dy", dy, shape.NumOut()),
        on("weight", weight, shape.NumWeights());
  }
};
// dweight (out, in, kernel, kernel) +=.
struct ConvWeightGrad {
  Tensor dweight, dy, x;
  ConvShape shape;
  void Visit(auto&& on) {
    on("dweight", dweight, shape.NumWeights()), on("dy", dy, shape.NumOut()),
        on("x", x, shape.NumIn());
  }
};

// y (N, C) = the mean of x (N, P, C) over P pixels.
struct MeanPoolForward {
  Tensor y, x;
  int64_t N, P, C;
  void Visit(auto&& on) { on("y", y, N * C), on("x", x, N * P * C); }
};
// dx (N, P, C) = dy (N, C) / P.
struct MeanPoolBackward {
  Tensor dx, dy;
  int64_t N, P, C;
  void Visit(auto&& on) { on("dx", dx, N * P * C), on("dy", dy, N * C); }
};

// out (B, T, C); qkv (B, T, QkvChannels) as [q | k | v], heads side by side; lse (B, H, T) f32
// saved. scratch: Kernels::AttentionScratchBytes.
struct AttentionForward {
  Tensor out, lse, qkv, scratch;
  AttentionShape shape;
  void Visit(auto&& on) {
    on("out", out, shape.B * shape.T * shape.C), on("lse", lse, shape.B * shape.H * shape.T),
        on("qkv", qkv, shape.B * shape.T * shape.QkvChannels()), on("scratch", scratch, 0);
  }
  int64_t Flops() const { return shape.ForwardFlops(); }
};
// dqkv as qkv, written. Probabilities are recomputed from qkv and lse (FlashAttention, Dao et al.
// 2022, section 3).
struct AttentionBackward {
  Tensor dqkv, dout, out, qkv, lse, scratch;
  AttentionShape shape;
  void Visit(auto&& on) {
    on("dqkv", dqkv, shape.B * shape.T * shape.QkvChannels()),
        on("dout", dout, shape.B * shape.T * shape.C), on("out", out, shape.B * shape.T * shape.C),
        on("qkv", qkv, shape.B * shape.T * shape.QkvChannels()),
        on("lse", lse, shape.B * shape.H * shape.T), on("scratch", scratch, 0);
  }
  // Four products. The recomputed QK^T is not counted.
  int64_t Flops() const { return 2 * shape.ForwardFlops(); }
};

// Softmax and cross entropy over N rows of V classes, in place: logits (N, V) become
// grad_scale * dloss/dlogits. Columns [V_used, V) are padding: probability and gradient 0. Rows
// whose target is kIgnoredTarget have no loss and gradient 0. *loss, if given, becomes the mean of
// the losses of the other rows, in nats; 0 if there are none.
struct CrossEntropyInPlace {
  double* loss;
  Tensor logits;
  const int32_t* targets;
  int64_t N, V, V_used;
  float grad_scale;
  int64_t num_ignored = 0;
  // The rows over which the loss is the mean, at least 1.
  double Divisor() const { return static_cast<double>(std::max<int64_t>(N - num_ignored, 1)); }
  void Visit(auto&& on) {
    on("loss", loss, loss == nullptr ? 0 : 1), on("logits", logits, N * V),
        on("targets", targets, N);
  }
  void Check() const { DSAT_CHECK(V_used > 0 && V_used <= V, "{} of {} classes", V_used, V); }
};

// All of them, each once.
using LayerOps =
    OpList<Fill, Cast, Accumulate, Scale, SumOfSquares, Add, Matmul, LayerNormForward,
           LayerNormBackward, RmsNormForward, RmsNormBackward, GroupNormForward, GroupNormBackward,
           GeluForward, GeluBackward, ReluForward, ReluBackward, SwigluForward, SwigluBackward,
           EmbeddingForward, EmbeddingBackward, TokenWindows, RotateInPlace, ConvForward,
           ConvInputGrad, ConvWeightGrad, MeanPoolForward, MeanPoolBackward, AttentionForward,
           AttentionBackward, CrossEntropyInPlace>;

}  // namespace op
}  // namespace dsat::engine
