// Models by name: what `hyperparameters.model` of an experiment file may say.
#ifndef DSAT_ENGINE_MODEL_MODELS_H_
#define DSAT_ENGINE_MODEL_MODELS_H_

#include <string>

#include "base/json.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// What docs/models.md says, by type:
// - {"type": "gpt2", "preset": "124M"}: presets 124M = gpt2 (the default), 350M = gpt2-medium, 774M
// =
//   gpt2-large, 1558M = gpt2-xl; or "config": a Hugging Face config.json; or, instead or over them,
//   n_layer, n_embd, n_head, n_positions, vocab_size.
// - {"type": "llama", "config": "config.json"}, or, instead or over it, the keys of LlamaShape.
// - {"type": "mlp", "context": 16, "embedding": 64, "hidden": [512, 512], "n_positions": 1024,
//   "vocab_size": 256} (these are the defaults), a language model that predicts each token from the
//   `context` tokens up to it (Bengio et al. 2003).
// - {"type": "resnet", "preset": "resnet20"}: presets resnet20 (the default), 32, 44, 56, 110; or
// the
//   keys of ResnetShape. It classifies images.
// gpt2 and llama may have "weights": a .safetensors file or an index of shards; the model's
// `weights` give its values then. All may have "frozen": patterns of parameter names
// (FreezeLayers).
//
// Relative paths start at `base_dir`. `what` is the JSON pointer of the block for messages. Throws
// kInvalidArgument naming the key, the value and what is expected, kNotFound naming a missing file.
Model MakeModel(const Json& model, const std::string& what, const std::string& base_dir = "");

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_MODELS_H_
