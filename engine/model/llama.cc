// Llama (Touvron et al. 2023, Dubey et al. 2024) as a shape of the transformer: RMS norm, rotary
// positions, SwiGLU, grouped queries, no biases. From a model block: Hugging Face's config.json, or
// its keys.

#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/model/from_json.h"
#include "engine/model/hugging_face.h"
#include "engine/model/transformer.h"

namespace dsat::engine {
namespace {

using Init = ParamSpec::Init;

constexpr float kStddev = 0.02F;

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

// Embedding, blocks, head. Parameters are named as in Hugging Face's Llama; those that are computed
// together are one: self_attn.qkv_proj.weight (in, q + k + v) and mlp.gate_up_proj.weight (in, gate
// + up), and linear weights are (in, out). Weights are initialized with N(0, 0.02). REQUIRES:
// key-value heads divide the heads, which divide the hidden size into an even number of channels.
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

// {"rope_type": "llama3", "factor": 8, ...}, or the type "default"; older files call it "type".
RopeScaling ReadScaling(const JsonBlock& block) {
  const std::string key = block.Has("rope_type") ? "rope_type" : "type";
  if (block.Word(key, {"default", "llama3"}) == "default") return {};
  RopeScaling scaling;
  for (const char* needed :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    (void)block.At(needed);
  scaling.factor = block.Number("factor", 1, 1, 1e6);
  scaling.low_freq_factor = block.Number("low_freq_factor", 1, 1e-6, 1e6);
  scaling.high_freq_factor = block.Number("high_freq_factor", 4, 1e-6, 1e6);
  scaling.original_positions =
      block.Int("original_max_position_embeddings", 8192, 1, kMaxPositions);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected more than low_freq_factor, which is {}",
          block.PointerTo("high_freq_factor"), scaling.high_freq_factor, scaling.low_freq_factor);
  }
  return scaling;
}

// rope_theta and rope_scaling, or both in rope_parameters, as newer files have them.
void ReadRope(const JsonBlock& block, LlamaShape& shape) {
  shape.rope_theta = block.Number("rope_theta", shape.rope_theta, 1, 1e12);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!block.Has(key) || block.At(key).is_null()) continue;
    const JsonBlock inner(block.At(key), block.PointerTo(key));
    shape.rope_theta = inner.Number("rope_theta", shape.rope_theta, 1, 1e12);
    shape.rope_scaling = ReadScaling(inner);
  }
}

void CheckHeads(const JsonBlock& block, const LlamaShape& shape) {
  const int64_t heads = shape.num_attention_heads;
  if (shape.hidden_size % heads != 0 || shape.hidden_size / heads % 2 != 0) {
    Throw(ErrorCode::kInvalidArgument,
          "{} is {}; expected one that divides hidden_size, {}, into an even number",
          block.PointerTo("num_attention_heads"), heads, shape.hidden_size);
  }
  if (heads % shape.num_key_value_heads != 0) {
    Throw(ErrorCode::kInvalidArgument,
          "{} is {}; expected a divisor of num_attention_heads, which is {}",
          block.PointerTo("num_key_value_heads"), shape.num_key_value_heads, heads);
  }
}

// The block's keys over `shape`.
LlamaShape ReadShape(const JsonBlock& block, LlamaShape shape) {
  shape.vocab_size = block.Int("vocab_size", shape.vocab_size, 2, kMaxVocab);
  shape.hidden_size = block.Int("hidden_size", shape.hidden_size, 2, kMaxWidth);
  shape.intermediate_size = block.Int("intermediate_size", shape.intermediate_size, 1, kMaxWidth);
  shape.num_hidden_layers = block.Int("num_hidden_layers", shape.num_hidden_layers, 1, kMaxLayers);
  const bool own_heads = block.Has("num_attention_heads");
  shape.num_attention_heads =
      block.Int("num_attention_heads", shape.num_attention_heads, 1, shape.hidden_size);
  if (own_heads) shape.num_key_value_heads = shape.num_attention_heads;
  if (block.Has("num_key_value_heads") && !block.At("num_key_value_heads").is_null()) {
    shape.num_key_value_heads = block.Int("num_key_value_heads", 1, 1, shape.num_attention_heads);
  }
  shape.max_position_embeddings =
      block.Int("max_position_embeddings", shape.max_position_embeddings, 1, kMaxPositions);
  shape.rms_norm_eps = block.Number("rms_norm_eps", shape.rms_norm_eps, 0, 1);
  shape.tie_word_embeddings = block.Bool("tie_word_embeddings", shape.tie_word_embeddings);
  ReadRope(block, shape);
  CheckHeads(block, shape);
  RefuseUnless(block, "hidden_act", {"silu"});
  RefuseUnless(block, "attention_bias", {false});
  RefuseUnless(block, "mlp_bias", {false});
  RefuseUnless(block, "head_dim", {shape.hidden_size / shape.num_attention_heads});
  RefuseUnless(block, "sliding_window", {});
  return shape;
}

ForeignFiles FilesOf(const LlamaShape& shape) {
  using Names = std::vector<std::string>;
  // A tied head is a copy of the embedding.
  return {.ignored = shape.tie_word_embeddings ? Names{"*.rotary_emb.inv_freq", "lm_head.weight"}
                                               : Names{"*.rotary_emb.inv_freq"}};
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

Model LlamaFromJson(const JsonBlock& block, const std::string& base_dir) {
  block.CheckKeys({"type", "config", "weights", "frozen", "vocab_size", "hidden_size",
                   "intermediate_size", "num_hidden_layers", "num_attention_heads",
                   "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
                   "rope_scaling", "tie_word_embeddings", "hidden_act"});
  LlamaShape shape;
  if (block.Has("config"))
    ReadForeignConfig(block, base_dir, "llama",
                      [&](const JsonBlock& config) { shape = ReadShape(config, shape); });
  shape = ReadShape(block, shape);
  Model model = MakeLlama(shape);
  model.description =
      fmt::format("llama {} layers, {} wide, {} heads, {} of keys, {} parameters",
                  shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads,
                  shape.num_key_value_heads, HumanCount(NumParams(model)));
  if (block.Has("weights"))
    model.weights = OpenForeignWeights(PathFrom(block, "weights", base_dir), model, FilesOf(shape));
  return model;
}

}  // namespace dsat::engine
