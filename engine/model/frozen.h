// The layers of a model that are not trained.
#ifndef DSAT_ENGINE_MODEL_FROZEN_H_
#define DSAT_ENGINE_MODEL_FROZEN_H_

#include <string>

#include "base/json.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// Sets model.frozen from a list of glob patterns (`*`, `?`, `[`; a `*` also crosses dots) over the
// names of the parameters. `what` is its JSON pointer. Throws kInvalidArgument naming the pattern
// if it matches nothing, the layer and its other parameters if only a part of a layer matches, and
// if nothing is left to train.
void FreezeLayers(Model& model, const Json& patterns, const std::string& what);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_FROZEN_H_
