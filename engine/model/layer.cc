// A layer: what every model's layers share.
#include "engine/model/layer.h"

#include <functional>
#include <numeric>

namespace dsat::engine {

int64_t ParamSpec::NumElems() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t ParamSpec::StoredElems() const {
  return vocab_padding == 0 ? NumElems() : NumElems() / shape[0] * (shape[0] + vocab_padding);
}

int64_t NumParams(const Layer& layer) {
  int64_t sum = 0;
  for (const ParamSpec& param : layer.params())
    sum += param.NumElems();
  return sum;
}

int64_t NumParams(const Model& model) {
  int64_t sum = 0;
  for (const auto& layer : model.layers)
    sum += NumParams(*layer);
  return sum;
}

int64_t NumTrainableParams(const Model& model) {
  int64_t sum = 0;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (!model.IsFrozen(i)) sum += NumParams(*model.layers[i]);
  }
  return sum;
}

}  // namespace dsat::engine
