// Parameters in the files of other programs. Linear layers that a model computes together are one
// parameter here but several tensors in those files, and their weights are transposed there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/model_parts.h"
#include "engine/core/tensor.h"
#include "engine/files/safetensors.h"

namespace dsat::engine {

// A parameter's tensors in published files: itself, or its `linears`, side by side, whose outs add
// up to its last dimension.
struct PublishedParam {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<LinearPart> linears = {};

  std::vector<TensorSpec> Tensors(DType dtype) const;
};

// Writes a file of the published tensors of a model, parameter by parameter. Keeps two copies of a
// parameter that has linears in memory, and nothing of other parameters.
class PublishedWriter {
 public:
  // Errors name the file.
  PublishedWriter(const std::string& path, DType dtype, std::vector<PublishedParam> params);

  // The next elements, parameter after parameter in the order announced. REQUIRES: they lie in one
  // parameter and have the file's dtype.
  void Write(const Tensor& piece);
  // As SafetensorsWriter's.
  void Commit() { out_.Commit(); }

 private:
  void WriteLinears(const PublishedParam& param);

  DType dtype_;
  std::vector<PublishedParam> params_;
  SafetensorsWriter out_;
  size_t next_ = 0;       // Parameters that are begun.
  int64_t num_left_ = 0;  // Elements that the last one begun still lacks.
  std::vector<char> whole_;
};

// Throws kInvalidArgument if `path` does not end in .safetensors, and says how to make a file for
// torch.load.
void CheckPublishedName(const std::string& path);

}  // namespace dsat::engine
