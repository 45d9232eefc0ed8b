// Models as Hugging Face publishes them: config.json and safetensors files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model/layer.h"

namespace dsat::engine {

struct PublishedParam;

// Properties of files besides the published tensors of a model.
struct ForeignFiles {
  std::string optional_prefix = {};       // A prefix of the names that some files have.
  std::vector<std::string> ignored = {};  // Glob patterns of tensors without parameters.
};

// Opens one .safetensors file, or the shards that an .index.json names (in its folder), and checks
// that the published tensors of `model` are there in the right shape, and no others. dtypes F32,
// BF16, F16. Throws kNotFound naming the file, kInvalidArgument naming what is missing, too many or
// mis-shaped, kDataLoss for a file that is not whole.
std::shared_ptr<const WeightSource> OpenForeignWeights(const std::string& path, const Model& model,
                                                       const ForeignFiles& files);

// The parameter as other programs know it.
PublishedParam PublishedOf(const ParamSpec& param);

}  // namespace dsat::engine
