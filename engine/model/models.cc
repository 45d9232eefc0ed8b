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

std::vector<std::string> NamesOf(const Layer& layer) {
  std::vector<std::string> names;
  for (const ParamSpec& param : layer.params())
    names.push_back(param.name);
  return names;
}

std::set<std::string> Matches(const Model& model, const std::string& pattern) {
  std::set<std::string> matches;
  for (const auto& layer : model.layers) {
    for (const std::string& name : NamesOf(*layer)) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) matches.insert(name);
    }
  }
  return matches;
}

std::set<std::string> MatchesOfAll(const Model& model, const Json& patterns,
                                   const std::string& what) {
  if (!patterns.is_array()) {
    Throw(ErrorCode::kInvalidArgument,
          "{} is {}; expected a list of patterns of parameter names, as [\"{}*\"]", what,
          patterns.dump(), model.layers.front()->params()[0].name.substr(0, 3));
  }
  std::set<std::string> frozen;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string pattern = patterns[i].is_string() ? patterns[i].get<std::string>() : "";
    const std::set<std::string> matches = Matches(model, pattern);
    if (matches.empty()) {
      Throw(ErrorCode::kInvalidArgument,
            "{}/{} is {}; no parameter has such a name; they are called {}, ..., {}", what, i,
            patterns[i].dump(), NamesOf(*model.layers.front()).front(),
            NamesOf(*model.layers.back()).back());
    }
    frozen.insert(matches.begin(), matches.end());
  }
  return frozen;
}

// Sets model.frozen from a list of glob patterns (`*`, `?`, `[`; a `*` also crosses dots) over the
// names of the parameters. `what` is its JSON pointer. Throws kInvalidArgument naming the pattern
// if it matches nothing, the layer and its other parameters if only a part of a layer matches, and
// if nothing is left to train.
void FreezeLayers(Model& model, const Json& patterns, const std::string& what) {
  const std::set<std::string> frozen = MatchesOfAll(model, patterns, what);
  model.frozen.assign(model.layers.size(), false);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const Layer& layer = *model.layers[i];
    std::vector<std::string> trained;
    for (const std::string& name : NamesOf(layer)) {
      if (!frozen.contains(name)) trained.push_back(name);
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
