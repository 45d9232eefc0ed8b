// Llama as a shape of the transformer.
#include "engine/model/llama.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "engine/model/transformer.h"

namespace dsat::engine {
namespace {

using Init = ParamSpec::Init;

constexpr float kStddev = 0.02F;

Norm NormOf(const LlamaShape& shape) {
  return {Norm::Kind::kRmsNorm, shape.hidden_size, static_cast<float>(shape.rms_norm_eps)};
}

double Stretch(double frequency, const RopeScaling& scaling) {
  const double turns = static_cast<double>(scaling.original_positions) * frequency /
                       (2 * std::numbers::pi);  // In the original context.
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double keep =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - keep) * frequency / scaling.factor + keep * frequency;
}

std::unique_ptr<Layer> MakeBlock(const LlamaShape& shape, int64_t index) {
  const int64_t C = shape.hidden_size;
  const int64_t F = shape.intermediate_size;
  const int64_t head_channels = C / shape.num_attention_heads;
  const int64_t kv_channels = shape.num_key_value_heads * head_channels;
  const std::string name = fmt::format("model.layers.{}", index);
  ParamSpecs params;
  const auto weight = [&](const char* suffix) { return fmt::format("{}.{}.weight", name, suffix); };
  const auto add_norm = [&](const char* suffix) {
    params.push_back({weight(suffix), {C}, Init::kOne});
  };
  // As one parameter what is computed together.
  const auto add_linear = [&](const char* suffix, int64_t in, std::vector<LinearPart> linears) {
    int64_t outs = 0;
    for (LinearPart& linear : linears) {
      linear.name = weight(linear.name.c_str());
      outs += linear.outs;
    }
    params.push_back({weight(suffix), {in, outs}, Init::kNormal, kStddev, std::move(linears)});
  };
  add_norm("input_layernorm");
  add_linear("self_attn.qkv_proj", C,
             {{"self_attn.q_proj", C},
              {"self_attn.k_proj", kv_channels},
              {"self_attn.v_proj", kv_channels}});
  add_linear("self_attn.o_proj", C, {{"self_attn.o_proj", C}});
  add_norm("post_attention_layernorm");
  add_linear("mlp.gate_up_proj", C, {{"mlp.gate_proj", F}, {"mlp.up_proj", F}});
  add_linear("mlp.down_proj", F, {{"mlp.down_proj", C}});
  BlockShape block{.C = C, .H = shape.num_attention_heads, .G = shape.num_key_value_heads, .F = F};
  block.norm = NormOf(shape);
  block.bias = false;
  block.gated = true;
  block.rotary_frequencies = RotaryFrequencies(head_channels, shape.rope_theta, shape.rope_scaling);
  return MakeTransformerBlock(name, block, std::move(params));
}

}  // namespace

std::vector<float> RotaryFrequencies(int64_t channels, double theta, const RopeScaling& scaling) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < channels / 2; ++i) {
    const double power = static_cast<double>(2 * i) / static_cast<double>(channels);
    const double frequency = std::pow(theta, -power);
    frequencies.push_back(
        static_cast<float>(scaling.factor == 1 ? frequency : Stretch(frequency, scaling)));
  }
  return frequencies;
}

Model MakeLlama(const LlamaShape& shape) {
  const int64_t C = shape.hidden_size;
  const int64_t V = shape.vocab_size;
  Model model;
  model.vocab_size = V;
  model.max_seq_len = shape.max_position_embeddings;
  model.head_channels = shape.hidden_size / shape.num_attention_heads;
  ParamSpec tokens = {"model.embed_tokens.weight", {V, C}, Init::kNormal, kStddev};
  ParamSpec logits = {"lm_head.weight", {V, C}, Init::kNormal, kStddev};
  const bool tied = shape.tie_word_embeddings;
  (tied ? tokens : logits).vocab_padding = VocabPadding(V);
  model.layers.push_back(MakeTokenEmbedding({std::move(tokens)}));
  for (int64_t index = 0; index < shape.num_hidden_layers; ++index)
    model.layers.push_back(MakeBlock(shape, index));
  ParamSpecs head = {{"model.norm.weight", {C}, Init::kOne}};
  if (!tied) head.push_back(std::move(logits));
  model.layers.push_back(MakeLanguageHead(NormOf(shape), V, tied, std::move(head)));
  return model;
}

}  // namespace dsat::engine
