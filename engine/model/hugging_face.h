// Models as Hugging Face publishes them: config.json and safetensors files.
#ifndef DSAT_ENGINE_MODEL_HUGGING_FACE_H_
#define DSAT_ENGINE_MODEL_HUGGING_FACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/layer.h"
#include "engine/model/weight_source.h"

namespace dsat::engine {

// Where the values of one parameter are in the files. As it is: one tensor of the same shape.
// Transposed: the parameter is (in, out), each tensor (out_i, in), and the out_i add up to out.
struct ForeignParam {
  struct Part {
    std::string name;
    std::vector<int64_t> shape;
  };
  std::vector<Part> parts;
  bool transposed = false;
};

// The whole of a model.
struct ForeignNames {
  std::map<std::string, ForeignParam> params;  // By our name.
  std::string optional_prefix;                 // Of every tensor, where a file has it.
  std::vector<std::string> ignored;            // Globs of tensors that hold nothing to learn.
};

// The parameter (in, out) as the tensors `names` of Linear layers, side by side, of these outs.
ForeignParam TransposedLinears(const ParamSpec& param, const std::vector<std::string>& names,
                               const std::vector<int64_t>& outs);
// The parameter as the tensor of the same name and shape.
ForeignParam SameTensor(const ParamSpec& param);

// Opens one .safetensors file, or the shards that an .index.json names (in its folder), and checks
// that the tensors of `model` are there in the right shape, and no others. dtypes F32, BF16, F16.
// Throws kNotFound naming the file, kInvalidArgument naming what is missing, too many or
// mis-shaped, kDataLoss for a file that is not whole.
std::shared_ptr<const WeightSource> OpenForeignWeights(const std::string& path,
                                                       const ForeignNames& names);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_HUGGING_FACE_H_
