// Models by name: what `hyperparameters.model` of an experiment file may say.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// The model that a JSON block describes (docs/models.md). Its "type" is one of
// - "gpt2": "preset" is 124M = gpt2 (the default), 350M = gpt2-medium, 774M = gpt2-large or
//   1558M = gpt2-xl; or "config" names a config.json of Hugging Face. n_layer, n_embd, n_head,
//   n_positions and vocab_size replace single values, or describe the whole model.
// - "llama": "config" names a config.json; the keys of LlamaShape replace single values, or
//   describe the whole model.
// - "mlp": a language model that predicts each token from the last `context` tokens (Bengio et al.
//   2003). The defaults are "context": 16, "embedding": 64, "hidden": [512, 512],
//   "n_positions": 1024, "vocab_size": 256.
// - "resnet": classifies images. "preset" is resnet20 (the default), resnet32, resnet44, resnet56
//   or resnet110; or the keys of ResnetShape describe the model.
// gpt2 and llama may have "weights", a .safetensors file or an index of shards, from which the
// parameters start. All types may have "frozen", patterns of parameter names (FreezeLayers).
//
// Relative paths start at `base_dir`. `what` is the JSON pointer of the block for messages. Throws
// kInvalidArgument naming the key, the value and what is expected, kNotFound naming a missing file.
Model MakeModel(const Json& model, const std::string& what, const std::string& base_dir = "");

}  // namespace dsat::engine
