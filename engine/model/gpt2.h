// GPT-2 (Radford et al. 2019): pre-norm transformer blocks, learned positions, tied output
// embedding. transformer.h says what it keeps between forward and backward.
#ifndef DSAT_ENGINE_MODEL_GPT2_H_
#define DSAT_ENGINE_MODEL_GPT2_H_

#include <cstdint>

#include "engine/model/layer.h"

namespace dsat::engine {

struct Gpt2Shape {
  int64_t n_layer = 12;
  int64_t n_embd = 768;
  int64_t n_head = 12;
  int64_t n_positions = 1024;
  int64_t vocab_size = 50257;
};

// Embedding, n_layer blocks, head. Parameters are named and shaped as in Hugging Face's GPT-2;
// weights are initialized with N(0, 0.02), those that add to the residual stream with N(0, 0.02 /
// sqrt(2 n_layer)). REQUIRES: n_head divides n_embd.
Model MakeGpt2(const Gpt2Shape& shape);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_GPT2_H_
