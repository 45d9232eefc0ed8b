// Convolutions through oneDNN.
#ifndef DSAT_ENGINE_BACKEND_CPU_CONVOLUTION_H_
#define DSAT_ENGINE_BACKEND_CPU_CONVOLUTION_H_

#include <memory>

#include "engine/backend/layer_ops.h"

namespace dsat::engine {

// Not thread-safe.
//
// The size of a batch alone determines how it is divided into pieces of images, and each piece is
// one oneDNN call on one thread. Results do not depend on the number of threads, and the gradients
// of the weights are summed over the pieces in order. bf16 is multiplied natively if the processor
// supports it; otherwise, and for f16, pieces are converted to f32.
class ConvRunner {
 public:
  explicit ConvRunner(int num_threads);
  ~ConvRunner();

  void Forward(Tensor y, Tensor x, Tensor weight, const ConvShape& shape);
  void InputGrad(Tensor dx, Tensor dy, Tensor weight, const ConvShape& shape);
  void WeightGrad(Tensor dweight, Tensor dy, Tensor x, const ConvShape& shape);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_CONVOLUTION_H_
