// Trained weights as the initial values of a model.
#ifndef DSAT_ENGINE_MODEL_WEIGHT_SOURCE_H_
#define DSAT_ENGINE_MODEL_WEIGHT_SOURCE_H_

#include <cstdint>
#include <string>

#include "engine/core/tensor.h"

namespace dsat::engine {

class Kernels;

// Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Writes elements [begin, begin + dst.num_elems) of the model's parameter `param`, in the order
  // of its ParamSpec's shape, to `dst`, converted to its dtype: a rank reads only what it keeps.
  // Throws kDataLoss if a file has changed underneath. REQUIRES: the model has the parameter, and
  // the range lies within it.
  virtual void Read(Kernels& kernels, const std::string& param, int64_t begin,
                    Tensor dst) const = 0;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_WEIGHT_SOURCE_H_
