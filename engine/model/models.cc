// From the model block of an experiment file to a model.
#include "engine/model/models.h"

#include <string>
#include <vector>

#include "base/json_block.h"
#include "engine/model/gpt2.h"
#include "engine/model/mlp.h"

namespace dsat::engine {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxPositions = 1 << 24;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxLayers = 4096;

struct Gpt2Preset {
  const char* name;
  const char* hugging_face_name;
  Gpt2Shape shape;
};

// Radford et al. 2019, table 2; named after the true counts, the tied embedding counted once.
constexpr Gpt2Preset kGpt2Presets[] = {
    {"124M", "gpt2", {.n_layer = 12, .n_embd = 768, .n_head = 12}},
    {"350M", "gpt2-medium", {.n_layer = 24, .n_embd = 1024, .n_head = 16}},
    {"774M", "gpt2-large", {.n_layer = 36, .n_embd = 1280, .n_head = 20}},
    {"1558M", "gpt2-xl", {.n_layer = 48, .n_embd = 1600, .n_head = 25}},
};

Gpt2Shape PresetOf(const JsonBlock& block) {
  if (!block.Has("preset")) return {};
  std::vector<std::string> names;
  for (const Gpt2Preset& preset : kGpt2Presets)
    names.push_back(preset.name);
  for (const Gpt2Preset& preset : kGpt2Presets)
    names.push_back(preset.hugging_face_name);
  const std::string word = block.Word("preset", names);
  for (const Gpt2Preset& preset : kGpt2Presets) {
    if (word == preset.name || word == preset.hugging_face_name) return preset.shape;
  }
  DSAT_CHECK(false, "preset {}", word);
  return {};
}

int64_t NumParams(const Model& model) {
  int64_t sum = 0;
  for (const auto& layer : model.layers) {
    for (const ParamSpec& param : layer->params())
      sum += param.NumElems();
  }
  return sum;
}

// "124.4 M", "1.6 B", "512".
std::string HumanCount(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.1f} B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} k", value / 1e3);
  return fmt::format("{}", count);
}

Model Gpt2FromJson(const JsonBlock& block) {
  block.CheckKeys({"type", "preset", "n_layer", "n_embd", "n_head", "n_positions", "vocab_size"});
  Gpt2Shape shape = PresetOf(block);
  shape.n_layer = block.Int("n_layer", shape.n_layer, 1, kMaxLayers);
  shape.n_embd = block.Int("n_embd", shape.n_embd, 1, kMaxWidth);
  shape.n_head = block.Int("n_head", shape.n_head, 1, shape.n_embd);
  shape.n_positions = block.Int("n_positions", shape.n_positions, 1, kMaxPositions);
  shape.vocab_size = block.Int("vocab_size", shape.vocab_size, 2, kMaxVocab);
  if (shape.n_embd % shape.n_head != 0) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a divisor of n_embd, which is {}",
          block.PointerTo("n_head"), shape.n_head, shape.n_embd);
  }
  Model model = MakeGpt2(shape);
  model.description = fmt::format("gpt2 {} layers, {} wide, {} heads, {} parameters", shape.n_layer,
                                  shape.n_embd, shape.n_head, HumanCount(NumParams(model)));
  return model;
}

std::vector<int64_t> HiddenFrom(const JsonBlock& block) {
  const Json& list = block.At("hidden");
  const std::string what = block.PointerTo("hidden");
  if (!list.is_array() || list.empty() || list.size() > kMaxLayers) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a list of widths, as [512, 512]", what,
          list.dump());
  }
  std::vector<int64_t> hidden;
  for (size_t i = 0; i < list.size(); ++i) {
    hidden.push_back(IntInRange(list[i], 1, kMaxWidth, fmt::format("{}/{}", what, i)));
  }
  return hidden;
}

Model MlpFromJson(const JsonBlock& block) {
  block.CheckKeys({"type", "context", "embedding", "hidden", "n_positions", "vocab_size"});
  MlpShape shape;
  shape.context = block.Int("context", shape.context, 1, kMaxPositions);
  shape.embedding = block.Int("embedding", shape.embedding, 1, kMaxWidth);
  if (block.Has("hidden")) shape.hidden = HiddenFrom(block);
  shape.n_positions = block.Int("n_positions", shape.n_positions, 1, kMaxPositions);
  shape.vocab_size = block.Int("vocab_size", shape.vocab_size, 2, kMaxVocab);
  Model model = MakeMlp(shape);
  model.description = fmt::format("mlp {} hidden layers, context {}, {} parameters",
                                  shape.hidden.size(), shape.context, HumanCount(NumParams(model)));
  return model;
}

}  // namespace

Model MakeModel(const Json& model, const std::string& what) {
  const JsonBlock block(model, what);
  return block.Word("type", {"gpt2", "mlp"}) == "gpt2" ? Gpt2FromJson(block) : MlpFromJson(block);
}

}  // namespace dsat::engine
