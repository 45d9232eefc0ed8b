// Models by name: what `hyperparameters.model` of an experiment file may say.
#ifndef DSAT_ENGINE_MODEL_MODELS_H_
#define DSAT_ENGINE_MODEL_MODELS_H_

#include <string>

#include "base/json.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// {"type": "gpt2", "preset": "124M"}, or with Hugging Face's keys instead of or over the preset:
// {"type": "gpt2", "n_layer": 6, "n_embd": 384, "n_head": 6, "n_positions": 256, "vocab_size":
// 256}; presets 124M = gpt2 (the default), 350M = gpt2-medium, 774M = gpt2-large, 1558M = gpt2-xl.
// {"type": "mlp", "context": 16, "embedding": 64, "hidden": [512, 512], "n_positions": 1024,
// "vocab_size": 256} (these are the defaults), a language model that predicts each token from the
// `context` tokens up to it (Bengio et al. 2003).
// `what` is the JSON pointer of the block for messages. Throws kInvalidArgument naming the key, the
// value and what is expected.
Model MakeModel(const Json& model, const std::string& what);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_MODELS_H_
