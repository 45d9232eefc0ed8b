// Llama from a model block: Hugging Face's config.json, or its keys.
#include "engine/model/llama_from_json.h"

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/model/from_json.h"
#include "engine/model/hugging_face.h"
#include "engine/model/llama.h"

namespace dsat::engine {
namespace {

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
  ForeignFiles files{.ignored = {"*.rotary_emb.inv_freq"}};
  if (shape.tie_word_embeddings) files.ignored.emplace_back("lm_head.weight");  // A copy.
  return files;
}

}  // namespace

Model LlamaFromJson(const JsonBlock& block, const std::string& base_dir) {
  block.CheckKeys({"type", "config", "weights", "frozen", "vocab_size", "hidden_size",
                   "intermediate_size", "num_hidden_layers", "num_attention_heads",
                   "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
                   "rope_scaling", "tie_word_embeddings", "hidden_act"});
  LlamaShape shape;
  if (block.Has("config"))
    shape = ReadShape(ReadForeignConfig(block, base_dir, "llama").Block(), shape);
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
