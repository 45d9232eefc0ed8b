// Llama from a model block of JSON.
#ifndef DSAT_ENGINE_MODEL_LLAMA_FROM_JSON_H_
#define DSAT_ENGINE_MODEL_LLAMA_FROM_JSON_H_

#include <string>

#include "base/json_block.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// Throws as MakeModel. Paths in the block start at `base_dir`.
Model LlamaFromJson(const JsonBlock& block, const std::string& base_dir);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_LLAMA_FROM_JSON_H_
