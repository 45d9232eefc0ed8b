// A language model without attention: an MLP over the last `context` tokens (Bengio et al.
// 2003).
//
// Bytes kept per token between forward and backward, e = bytes per element of the dtype:
//   embedding  nothing
//   hidden.i   e hidden[i]: its output before the ReLU
//   head       e V: the gradient of the logits
// and e times its width for each layer's output, which the executor keeps.
#ifndef DSAT_ENGINE_MODEL_MLP_H_
#define DSAT_ENGINE_MODEL_MLP_H_

#include <cstdint>
#include <vector>

#include "engine/model/layer.h"

namespace dsat::engine {

struct MlpShape {
  int64_t context = 16;    // Tokens that each prediction sees: its own and those before.
  int64_t embedding = 64;  // Channels per token.
  std::vector<int64_t> hidden = {512, 512};
  int64_t n_positions = 1024;  // The longest sequence; no parameter depends on it.
  int64_t vocab_size = 256;
};

// Embedding and concatenation of the context, the hidden layers with ReLU, the output layer. Before
// the start of a sequence the context is filled with token 0.
Model MakeMlp(const MlpShape& shape);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_MLP_H_
