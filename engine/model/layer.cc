// A layer: what every model's layers share.
#include "engine/model/layer.h"

#include <functional>
#include <numeric>

namespace dsat::engine {

int64_t ParamSpec::NumElems() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace dsat::engine
