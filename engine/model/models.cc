// From the model block of an experiment file to a model.
#include "engine/model/models.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <set>
#include <vector>

#include "base/error.h"
#include "base/json_block.h"
#include "engine/model/from_json.h"

namespace dsat::engine {
namespace {

Model FromType(const JsonBlock& block, const std::string& base_dir) {
  const std::string type = block.Word("type", {"gpt2", "llama", "mlp", "resnet"});
  if (type == "gpt2") return Gpt2FromJson(block, base_dir);
  if (type == "llama") return LlamaFromJson(block, base_dir);
  return type == "mlp" ? MlpFromJson(block, base_dir) : ResnetFromJson(block, base_dir);
}

// The names of the parameters that some of the patterns match.
std::set<std::string> MatchesOf(const Model& model, const Json& patterns, const std::string& what) {
  std::vector<std::string> names;
  for (const auto& layer : model.layers) {
    for (const ParamSpec& param : layer->params())
      names.push_back(param.name);
  }
  if (!patterns.is_array()) {
    Throw(ErrorCode::kInvalidArgument,
          "{} is {}; expected a list of patterns of parameter names, as [\"{}*\"]", what,
          patterns.dump(), names.front().substr(0, 3));
  }
  std::set<std::string> frozen;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string pattern = patterns[i].is_string() ? patterns[i].get<std::string>() : "";
    bool matches = false;
    for (const std::string& name : names) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) != 0) continue;
      frozen.insert(name);
      matches = true;
    }
    if (matches) continue;
    Throw(ErrorCode::kInvalidArgument,
          "{}/{} is {}; no parameter has such a name; they are called {}, ..., {}", what, i,
          patterns[i].dump(), names.front(), names.back());
  }
  return frozen;
}

// Sets model.frozen from a list of glob patterns (`*`, `?`, `[`; a `*` also crosses dots) over the
// names of the parameters. `what` is its JSON pointer. Throws kInvalidArgument naming the pattern
// if it matches nothing, the layer and its other parameters if only a part of a layer matches, and
// if nothing is left to train.
void FreezeLayers(Model& model, const Json& patterns, const std::string& what) {
  const std::set<std::string> frozen = MatchesOf(model, patterns, what);
  model.frozen.assign(model.layers.size(), false);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const Layer& layer = *model.layers[i];
    std::vector<std::string> trained;
    for (const ParamSpec& param : layer.params()) {
      if (!frozen.contains(param.name)) trained.push_back(param.name);
    }
    model.frozen[i] = trained.empty();
    if (trained.empty() || trained.size() == layer.params().size()) continue;
    Throw(ErrorCode::kInvalidArgument,
          "{} is {}; it freezes a part of layer {}, which is frozen as a whole or not at all; add "
          "{}, or freeze none of it",
          what, patterns.dump(), layer.name(), fmt::join(trained, ", "));
  }
  if (NumTrainableParams(model) > 0) return;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; every layer is frozen, nothing is left to train",
        what, patterns.dump());
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
