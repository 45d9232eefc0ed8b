// The readers of model blocks, and what they share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json_block.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// The models of each type. Throw as MakeModel. Paths in the block start at `base_dir`.
Model Gpt2FromJson(const JsonBlock& block, const std::string& base_dir);
Model LlamaFromJson(const JsonBlock& block, const std::string& base_dir);
Model MlpFromJson(const JsonBlock& block, const std::string& base_dir);
Model ResnetFromJson(const JsonBlock& block, const std::string& base_dir);

inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxPositions = 1 << 24;
inline constexpr int64_t kMaxVocab = 1 << 24;
inline constexpr int64_t kMaxLayers = 4096;

// "124.4 M", "1.6 B", "512".
std::string HumanCount(int64_t count);

// The file that the block's `key` names; `expected` describes it. REQUIRES: the block has the key.
std::string PathFrom(const JsonBlock& block, const std::string& key, const std::string& base_dir,
                     const std::string& expected = "a file");

// Calls read(config) with the config.json of a Hugging Face model that block's "config" names,
// whose keys that do not change the model are ignored. Throws naming the file if its model_type is
// not `type`, or it is quantized.
void ReadForeignConfig(const JsonBlock& block, const std::string& base_dir, const std::string& type,
                       const std::function<void(const JsonBlock& config)>& read);

// Throws naming the key if it is there, is not null and has none of the values `accepted`.
void RefuseUnless(const JsonBlock& config, const std::string& key,
                  const std::vector<Json>& accepted);

}  // namespace dsat::engine
