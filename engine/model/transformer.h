// The layers of language models with attention: embedding, transformer block, head. GPT-2 and Llama
// differ only in the shapes and settings of these layers.
//
// Bytes kept per token between forward and backward. e: bytes per element of the dtype; K: channels
// of the keys; F: width of the MLP (twice that with SwiGLU); V: the padded vocabulary; s: numbers
// that a norm keeps.
//   embedding  nothing
//   block      e (3 C + 2 K + F) + 4 (2 s + H), which are
//                e (C + 2 K)    qkv
//                e C            the attention output
//                e C            the residual stream after attention
//                e F            the MLP before its activation
//                4 (2 s + H)    statistics of the norms and attention's log-sum-exp, in f32
//              Backward computes the outputs of the norms and of the activation again, or
//              forward keeps them too (LayerContext::keeps_outputs): e (2 C + F'), where F' is F,
//              or F / 2 with SwiGLU.
//   head       e V + 4 s, the gradient of the logits and the statistics; likewise e C
// The executor keeps e C more for the output of each layer. Buffers are rounded up to the arena's
// unit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/layer.h"

namespace dsat::engine {

// The normalization of a transformer: layer norm or RMS norm over the channels of each row.
struct Norm {
  enum class Kind : uint8_t { kLayerNorm, kRmsNorm } kind = Kind::kLayerNorm;
  int64_t C = 0;
  float eps = 1e-5F;  // RMS norm's; layer norm has 1e-5.

  // The number of f32 statistics per row that forward saves for backward.
  int64_t StatsPerRow() const { return kind == Kind::kLayerNorm ? 2 : 1; }
  // A layer norm has a weight and, as the parameter after it, a bias; RMS norm a weight alone.
  int64_t NumParams() const { return kind == Kind::kLayerNorm ? 2 : 1; }

  // y (N, C) = norm(x) with the layer's parameters from `param` on; stats (N *
  // StatsPerRow) f32 is written.
  void Forward(const LayerContext& ctx, Tensor y, Tensor stats, Tensor x, size_t param,
               int64_t N) const;
  // dx (N, C) = or, if accumulate, +=; the gradients of the parameters += unless they are empty.
  void Backward(const LayerContext& ctx, Tensor dx, Tensor dy, Tensor x, Tensor stats, size_t param,
                int64_t N, bool accumulate) const;
};

// Parameters that a layer is given: specs in the order that its function says.
using ParamSpecs = std::vector<ParamSpec>;

// Rows that pad an embedding (V, C) which the head uses, so that rows of 16-bit logits are whole
// cache lines: V is padded to the next multiple of 64, unless that adds more than 1 %. A matrix
// multiplication on a GPU's tensor cores reads and writes rows of other lengths element by element.
int64_t VocabPadding(int64_t V);

// Tokens to vectors (B, T, C). params: tokens (V, C) and, if positions are learned, positions
// (T_max, C).
std::unique_ptr<Layer> MakeTokenEmbedding(ParamSpecs params);

// Llama 3.1's stretching of the rotary frequencies to longer contexts: wavelengths above
// original_positions / low_freq_factor grow by `factor`, those below original_positions /
// high_freq_factor stay, between them it is linear in the frequency.
struct RopeScaling {
  double factor = 1;  // 1: none.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 8192;
};

// Angle per position of each pair of a head's channels: theta^(-2 i / channels), stretched.
std::vector<float> RotaryFrequencies(int64_t channels, double theta, const RopeScaling& scaling);

struct BlockShape {
  int64_t C = 0;  // Channels.
  int64_t H = 0;  // Heads. Divides C.
  int64_t G = 0;  // Heads of keys and values. Divides H.
  int64_t F = 0;  // Width of the MLP.
  Norm norm = {};
  bool bias = true;                            // Linear layers have one.
  bool gated = false;                          // SwiGLU; else GELU.
  std::vector<float> rotary_frequencies = {};  // C / H / 2 of them; none: no rotation.
};

// x + attention(norm(x)), then the same with a two-layer MLP. params: first norm, qkv (C, C
// + 2 K), projection (C, C), second norm, fc (C, F or 2 F as [gate | up]), projection (F, C), each
// a weight and, where it has one, a bias.
std::unique_ptr<Layer> MakeTransformerBlock(std::string name, const BlockShape& shape,
                                            ParamSpecs params);

// The final norm, logits = norm(x) * embedding (V, C)^T, and the loss. params: the norm and, unless
// `tied` borrows it from the first layer, the output embedding; its vocabulary may be padded.
std::unique_ptr<Layer> MakeLanguageHead(const Norm& norm, int64_t vocab_size, bool tied,
                                        ParamSpecs params);

}  // namespace dsat::engine
