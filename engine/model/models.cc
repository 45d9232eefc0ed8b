// From the model block of an experiment file to a model.
#include "engine/model/models.h"

#include <string>

#include "base/json_block.h"
#include "engine/model/from_json.h"
#include "engine/model/frozen.h"

namespace dsat::engine {
namespace {

Model FromType(const JsonBlock& block, const std::string& base_dir) {
  const std::string type = block.Word("type", {"gpt2", "llama", "mlp", "resnet"});
  if (type == "gpt2") return Gpt2FromJson(block, base_dir);
  if (type == "llama") return LlamaFromJson(block, base_dir);
  return type == "mlp" ? MlpFromJson(block, base_dir) : ResnetFromJson(block, base_dir);
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
