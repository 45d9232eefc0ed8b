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

// Rows that pad an embedding (V, C) which the head uses, so that rows of 16-bit logits are whole
// cache lines: V is padded to the next multiple of 64, unless that adds more than 1 %. A matrix
// multiplication on a GPU's tensor cores reads and writes rows of other lengths element by element.
int64_t VocabPadding(int64_t V);

// Tokens to vectors (B, T, C). params: tokens (V, C) and, if positions are learned, positions
// (T_max, C).
std::unique_ptr<Layer> MakeTokenEmbedding(ParamSpecs params);

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

#endif  // DSAT_ENGINE_MODEL_TRANSFORMER_H_
