// GPT-2 from a model block: preset, Hugging Face's config.json, or keys of our own.
#include "engine/model/gpt2_from_json.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/model/from_json.h"
#include "engine/model/gpt2.h"
#include "engine/model/hugging_face.h"

namespace dsat::engine {
namespace {

struct Preset {
  const char* name;
  const char* hugging_face_name;
  Gpt2Shape shape;
};

// Radford et al. 2019, table 2; named after the true counts, the tied embedding counted once.
constexpr Preset kPresets[] = {
    {"124M", "gpt2", {.n_layer = 12, .n_embd = 768, .n_head = 12}},
    {"350M", "gpt2-medium", {.n_layer = 24, .n_embd = 1024, .n_head = 16}},
    {"774M", "gpt2-large", {.n_layer = 36, .n_embd = 1280, .n_head = 20}},
    {"1558M", "gpt2-xl", {.n_layer = 48, .n_embd = 1600, .n_head = 25}},
};

Gpt2Shape PresetOf(const JsonBlock& block) {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets)
    names.push_back(preset.name);
  for (const Preset& preset : kPresets)
    names.push_back(preset.hugging_face_name);
  const std::string word = block.Word("preset", names);
  for (const Preset& preset : kPresets) {
    if (word == preset.name || word == preset.hugging_face_name) return preset.shape;
  }
  DSAT_CHECK(false, "preset {}", word);
  return {};
}

// The block's keys over `shape`.
Gpt2Shape ReadShape(const JsonBlock& block, Gpt2Shape shape) {
  shape.n_layer = block.Int("n_layer", shape.n_layer, 1, kMaxLayers);
  shape.n_embd = block.Int("n_embd", shape.n_embd, 1, kMaxWidth);
  shape.n_head = block.Int("n_head", shape.n_head, 1, shape.n_embd);
  shape.n_positions = block.Int("n_positions", shape.n_positions, 1, kMaxPositions);
  shape.vocab_size = block.Int("vocab_size", shape.vocab_size, 2, kMaxVocab);
  if (shape.n_embd % shape.n_head != 0) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a divisor of n_embd, which is {}",
          block.PointerTo("n_head"), shape.n_head, shape.n_embd);
  }
  return shape;
}

Gpt2Shape ReadConfig(const ForeignConfig& config) {
  const JsonBlock block = config.Block();
  const Gpt2Shape shape = ReadShape(block, {});
  RefuseUnless(block, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  RefuseUnless(block, "n_inner", {4 * shape.n_embd});
  RefuseUnless(block, "layer_norm_epsilon", {1e-5});
  RefuseUnless(block, "scale_attn_weights", {true});
  RefuseUnless(block, "scale_attn_by_inverse_layer_idx", {false});
  RefuseUnless(block, "add_cross_attention", {false});
  RefuseUnless(block, "tie_word_embeddings", {true});
  return shape;
}

// Causal masks of older files, and a copy of the tied embedding. Conv1D weights are (in, out), as
// ours.
const ForeignFiles kFiles = {
    .optional_prefix = "transformer.",
    .ignored = {"*h.*.attn.bias", "*h.*.attn.masked_bias", "lm_head.weight"}};

}  // namespace

Model Gpt2FromJson(const JsonBlock& block, const std::string& base_dir) {
  block.CheckKeys({"type", "preset", "config", "weights", "frozen", "n_layer", "n_embd", "n_head",
                   "n_positions", "vocab_size"});
  Gpt2Shape shape;
  if (block.Has("preset") && block.Has("config")) {
    Throw(ErrorCode::kInvalidArgument, "{}: expected one of preset and config, not both",
          block.PointerTo("preset"));
  }
  if (block.Has("preset")) shape = PresetOf(block);
  if (block.Has("config")) shape = ReadConfig(ReadForeignConfig(block, base_dir, "gpt2"));
  shape = ReadShape(block, shape);
  Model model = MakeGpt2(shape);
  model.description = fmt::format("gpt2 {} layers, {} wide, {} heads, {} parameters", shape.n_layer,
                                  shape.n_embd, shape.n_head, HumanCount(NumParams(model)));
  if (block.Has("weights"))
    model.weights = OpenForeignWeights(PathFrom(block, "weights", base_dir), model, kFiles);
  return model;
}

}  // namespace dsat::engine
