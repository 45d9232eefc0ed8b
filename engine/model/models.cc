// From the model block of an experiment file to a model.
#include "engine/model/models.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/json_block.h"
#include "engine/model/from_json.h"
#include "engine/model/frozen.h"
#include "engine/model/gpt2_from_json.h"
#include "engine/model/llama_from_json.h"
#include "engine/model/mlp.h"
#include "engine/model/resnet.h"

namespace dsat::engine {
namespace {

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
  block.CheckKeys(
      {"type", "frozen", "context", "embedding", "hidden", "n_positions", "vocab_size"});
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

constexpr struct ResnetPreset {
  const char* name;
  int64_t depth;
} kResnetPresets[] = {
    {"resnet20", 20}, {"resnet32", 32}, {"resnet44", 44}, {"resnet56", 56}, {"resnet110", 110}};

int64_t DepthFrom(const JsonBlock& block, int64_t fallback) {
  if (block.Has("preset")) {
    std::vector<std::string> names;
    for (const ResnetPreset& preset : kResnetPresets)
      names.emplace_back(preset.name);
    const std::string word = block.Word("preset", names);
    for (const ResnetPreset& preset : kResnetPresets) {
      if (word == preset.name) fallback = preset.depth;
    }
  }
  const int64_t depth = block.Int("depth", fallback, 8, 6 * kMaxLayers + 2);
  if (depth % 6 == 2) return depth;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; expected 6 n + 2, as 20, 32, 44, 56 or 110",
        block.PointerTo("depth"), depth);
}

Model ResnetFromJson(const JsonBlock& block) {
  block.CheckKeys({"type", "frozen", "preset", "depth", "width", "groups", "image_size", "channels",
                   "classes"});
  ResnetShape shape;
  shape.depth = DepthFrom(block, shape.depth);
  shape.width = block.Int("width", shape.width, 1, kMaxWidth);
  shape.groups = block.Int("groups", std::min(shape.groups, shape.width), 1, shape.width);
  shape.image_size = block.Int("image_size", shape.image_size, 4, 4096);
  shape.channels = block.Int("channels", shape.channels, 1, 1024);
  shape.classes = block.Int("classes", shape.classes, 2, kMaxVocab);
  if (shape.width % shape.groups != 0) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a divisor of width, which is {}",
          block.PointerTo("groups"), shape.groups, shape.width);
  }
  Model model = MakeResnet(shape);
  model.description = fmt::format("resnet {} layers, {} wide, images {} x {} x {}, {} parameters",
                                  shape.depth, shape.width, shape.image_size, shape.image_size,
                                  shape.channels, HumanCount(NumParams(model)));
  return model;
}

Model FromType(const JsonBlock& block, const std::string& base_dir) {
  const std::string type = block.Word("type", {"gpt2", "llama", "mlp", "resnet"});
  if (type == "gpt2") return Gpt2FromJson(block, base_dir);
  if (type == "llama") return LlamaFromJson(block, base_dir);
  return type == "mlp" ? MlpFromJson(block) : ResnetFromJson(block);
}

}  // namespace

std::string HumanCount(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.1f} B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} k", value / 1e3);
  return fmt::format("{}", count);
}

Model MakeModel(const Json& model, const std::string& what, const std::string& base_dir) {
  const JsonBlock block(model, what);
  Model result = FromType(block, base_dir);
  if (block.Has("frozen")) {
    FreezeLayers(result, block.At("frozen"), block.PointerTo("frozen"));
    result.description += fmt::format(", {} trained", HumanCount(NumTrainableParams(result)));
  }
  return result;
}

}  // namespace dsat::engine
