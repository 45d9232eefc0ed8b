// Finds the layers that are not trained.
#include "engine/model/frozen.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"

namespace dsat::engine {
namespace {

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

}  // namespace

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

}  // namespace dsat::engine
