// GPT-2 (Radford et al. 2019) as a shape of the transformer: pre-norm blocks, learned positions,
// tied output embedding. From a model block: preset, Hugging Face's config.json, or keys of our
// own.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "engine/model/from_json.h"
#include "engine/model/hugging_face.h"
#include "engine/model/transformer.h"

namespace dsat::engine {
namespace {

using Init = ParamSpec::Init;

constexpr float kStddev = 0.02F;

struct Gpt2Shape {
  int64_t n_layer = 12;
  int64_t n_embd = 768;
  int64_t n_head = 12;
  int64_t n_positions = 1024;
  int64_t vocab_size = 50257;
};

std::unique_ptr<Layer> MakeBlock(const Gpt2Shape& shape, int64_t index) {
  const int64_t C = shape.n_embd;
  const float residual_stddev = kStddev / std::sqrt(2.0F * static_cast<float>(shape.n_layer));
  const std::string name = fmt::format("h.{}", index);
  ParamSpecs params;
  const auto add = [&](const char* suffix, std::vector<int64_t> dims, Init init, float stddev = 0) {
    params.push_back({fmt::format("{}.{}", name, suffix), std::move(dims), init, stddev});
  };
  add("ln_1.weight", {C}, Init::kOne);
  add("ln_1.bias", {C}, Init::kZero);
  add("attn.c_attn.weight", {C, 3 * C}, Init::kNormal, kStddev);
  add("attn.c_attn.bias", {3 * C}, Init::kZero);
  add("attn.c_proj.weight", {C, C}, Init::kNormal, residual_stddev);
  add("attn.c_proj.bias", {C}, Init::kZero);
  add("ln_2.weight", {C}, Init::kOne);
  add("ln_2.bias", {C}, Init::kZero);
  add("mlp.c_fc.weight", {C, 4 * C}, Init::kNormal, kStddev);
  add("mlp.c_fc.bias", {4 * C}, Init::kZero);
  add("mlp.c_proj.weight", {4 * C, C}, Init::kNormal, residual_stddev);
  add("mlp.c_proj.bias", {C}, Init::kZero);
  BlockShape block{.C = C, .H = shape.n_head, .G = shape.n_head, .F = 4 * C};
  block.norm = {Norm::Kind::kLayerNorm, C};
  return MakeTransformerBlock(name, block, std::move(params));
}

// Embedding, n_layer blocks, head. Parameters are named and shaped as in Hugging Face's GPT-2;
// weights are initialized with N(0, 0.02), those that add to the residual stream with N(0, 0.02 /
// sqrt(2 n_layer)). REQUIRES: n_head divides n_embd.
Model MakeGpt2(const Gpt2Shape& shape) {
  const int64_t C = shape.n_embd;
  Model model;
  model.vocab_size = shape.vocab_size;
  model.max_seq_len = shape.n_positions;
  model.head_channels = C / shape.n_head;
  ParamSpec wte = {"wte.weight", {shape.vocab_size, C}, Init::kNormal, kStddev};
  wte.vocab_padding = VocabPadding(shape.vocab_size);
  model.layers.push_back(MakeTokenEmbedding(
      {std::move(wte), {"wpe.weight", {shape.n_positions, C}, Init::kNormal, kStddev}}));
  for (int64_t index = 0; index < shape.n_layer; ++index)
    model.layers.push_back(MakeBlock(shape, index));
  model.layers.push_back(
      MakeLanguageHead({Norm::Kind::kLayerNorm, C}, shape.vocab_size, /*tied=*/true,
                       {{"ln_f.weight", {C}, Init::kOne}, {"ln_f.bias", {C}, Init::kZero}}));
  return model;
}

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

// The number that a size such as "7B" or "1.5e9" stands for; 0 for other words.
double CountOf(const std::string& size) {
  char* end = nullptr;
  const double number = std::strtod(size.c_str(), &end);
  const std::string unit = end;
  if (unit.empty()) return number;
  const size_t power = std::string_view("kmbt").find(LowerCase(unit)[0]);
  return unit.size() > 1 || power == unit.npos ? 0 : number * std::pow(1000, power + 1);
}

// A GPT with about `count` = 12 L h^2 parameters besides the embeddings (Rajbhandari et al. 2021,
// "ZeRO-Infinity"). The width h is 128 times the depth L, rounded to a multiple of 128, and heads
// are 128 wide.
Gpt2Shape ShapeOfSize(double count) {
  constexpr int64_t kHeadWidth = 128;
  constexpr double kWidthPerLayer = 128;
  const double depth = std::cbrt(count / (12 * kWidthPerLayer * kWidthPerLayer));
  Gpt2Shape shape;
  shape.n_layer = std::max<int64_t>(1, std::llround(depth));
  const double width = std::sqrt(count / (12 * static_cast<double>(shape.n_layer)));
  shape.n_head = std::max<int64_t>(1, std::llround(width / kHeadWidth));
  shape.n_embd = shape.n_head * kHeadWidth;
  return shape;
}

Gpt2Shape PresetOf(const JsonBlock& block) {
  std::vector<std::string> names;
  const Json& value = block.At("preset");
  const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
  for (const Preset& preset : kPresets) {
    if (word == preset.name || word == preset.hugging_face_name) return preset.shape;
    names.insert(names.end(), {preset.name, preset.hugging_face_name});
  }
  const double count = CountOf(word);
  if (count >= 1e6 && count <= 1e14) return ShapeOfSize(count);
  Throw(ErrorCode::kInvalidArgument,
        "{} is {}; expected a number of parameters from 1M to 100T, such as 7B, or one of {}",
        block.PointerTo("preset"), value.dump(), fmt::join(names, ", "));
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

Gpt2Shape ReadConfig(const JsonBlock& block) {
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
  if (block.Has("config"))
    ReadForeignConfig(block, base_dir, "gpt2",
                      [&](const JsonBlock& config) { shape = ReadConfig(config); });
  shape = ReadShape(block, shape);
  Model model = MakeGpt2(shape);
  model.description = fmt::format("gpt2 {} layers, {} wide, {} heads, {} parameters", shape.n_layer,
                                  shape.n_embd, shape.n_head, HumanCount(NumParams(model)));
  if (block.Has("weights"))
    model.weights = OpenForeignWeights(PathFrom(block, "weights", base_dir), model, kFiles);
  return model;
}

}  // namespace dsat::engine
