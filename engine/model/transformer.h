// The layers that language models with attention are made of: embedding, block, head. GPT-2 and
// Llama are shapes of them.
//
// Bytes kept per token between forward and backward, e = bytes per element of the dtype, K =
// channels of the keys, F = width of the perceptron (twice with SwiGLU), s = numbers a norm keeps:
//   embedding  nothing
//   block      e (3 C + 2 K + F) + 4 (2 s + H): qkv (C + 2 K), attention output (C), residual
//   stream
//              after attention (C), the perceptron before its activation (F); the norms' statistics
//              and attention's log-sum-exp in f32. The norms' and the activation's outputs are
//              computed again in backward.
//   head       e V + 4 s: the gradient of the logits (V with the spare rows); statistics
// and e C for each layer's output, which the executor keeps. Buffers round up to the arena's unit.
#ifndef DSAT_ENGINE_MODEL_TRANSFORMER_H_
#define DSAT_ENGINE_MODEL_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/layer.h"
#include "engine/model/norm.h"

namespace dsat::engine {

// Parameters that a layer is given: specs in the order that its function says.
using ParamSpecs = std::vector<ParamSpec>;

// Rows behind an embedding (V, C) that the head shall use, so that rows of logits, in 16 bit, are
// whole cache lines: up to the next multiple of 64, unless that is over 1 % more. Where they are
// not, a product on a GPU's tensor cores reads and writes them element by element.
int64_t SpareRows(int64_t V);

// Tokens to vectors (B, T, C). params: tokens (V, C) and, if positions are learned, positions
// (T_max, C).
std::unique_ptr<Layer> MakeTokenEmbedding(ParamSpecs params);

struct BlockShape {
  int64_t C = 0;  // Channels.
  int64_t H = 0;  // Heads. Divides C.
  int64_t G = 0;  // Heads of keys and values. Divides H.
  int64_t F = 0;  // Width of the perceptron.
  Norm norm = {};
  bool bias = true;                            // Linear layers have one.
  bool gated = false;                          // SwiGLU; else GELU.
  std::vector<float> rotary_frequencies = {};  // C / H / 2 of them; none: no rotation.
};

// x + attention(norm(x)), then the same with a two-layer perceptron. params: first norm, qkv (C, C
// + 2 K), projection (C, C), second norm, fc (C, F or 2 F as [gate | up]), projection (F, C), each
// a weight and, where it has one, a bias.
std::unique_ptr<Layer> MakeTransformerBlock(std::string name, const BlockShape& shape,
                                            ParamSpecs params);

// The final norm, logits = norm(x) * embedding (V, C)^T, and the loss. params: the norm and, unless
// `tied` borrows it from the first layer, the output embedding; it may have spare rows.
std::unique_ptr<Layer> MakeLanguageHead(const Norm& norm, int64_t vocab_size, bool tied,
                                        ParamSpecs params);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_TRANSFORMER_H_
