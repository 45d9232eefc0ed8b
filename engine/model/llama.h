// Llama (Touvron et al. 2023, Dubey et al. 2024): RMS norm, rotary positions, SwiGLU, grouped
// queries, no biases. transformer.h says what it keeps between forward and backward.
#ifndef DSAT_ENGINE_MODEL_LLAMA_H_
#define DSAT_ENGINE_MODEL_LLAMA_H_

#include <cstdint>
#include <vector>

#include "engine/model/layer.h"

namespace dsat::engine {

// Llama 3.1's stretching of the rotary frequencies to longer contexts: wavelengths above
// original_positions / low_freq_factor grow by `factor`, those below original_positions /
// high_freq_factor stay, between them it is linear in the frequency.
struct RopeScaling {
  double factor = 1;  // 1: none.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 8192;
};

// Named as in Hugging Face's LlamaConfig, with its defaults (Llama 7B).
struct LlamaShape {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
};

// Angle per position of each pair of a head's channels: theta^(-2 i / channels), stretched.
std::vector<float> RotaryFrequencies(int64_t channels, double theta, const RopeScaling& scaling);

// Embedding, blocks, head. Parameters are named as in Hugging Face's Llama; those that are computed
// together are one: self_attn.qkv_proj.weight (in, q + k + v) and mlp.gate_up_proj.weight (in, gate
// + up), and linear weights are (in, out). Weights are initialized with N(0, 0.02). REQUIRES:
// key-value heads divide the heads, which divide the hidden size into an even number of channels.
Model MakeLlama(const LlamaShape& shape);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_LLAMA_H_
