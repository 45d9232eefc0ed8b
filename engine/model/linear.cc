// The affine map that layers are made of.
#include "engine/model/linear.h"

namespace dsat::engine {

void LinearForward(Kernels& kernels, Tensor y, Tensor x, Tensor weight, Tensor bias,
                   const LinearShape& shape) {
  kernels.Matmul(
      {.M = shape.N, .N = shape.out, .K = shape.in, .a = x, .b = weight, .c = y, .bias = bias});
}

void LinearParamGrads(Kernels& kernels, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                      const LinearShape& shape) {
  if (dweight.num_elems > 0) {
    kernels.Matmul({.M = shape.in,
                    .N = shape.out,
                    .K = shape.N,
                    .a = x,
                    .b = dy,
                    .c = dweight,
                    .transpose_a = true,
                    .accumulate = true});
  }
  if (dbias.num_elems > 0) kernels.BiasGrad(dbias, dy, shape.N, shape.out);
}

void LinearInputGrad(Kernels& kernels, Tensor dx, Tensor dy, Tensor weight,
                     const LinearShape& shape) {
  kernels.Matmul({.M = shape.N,
                  .N = shape.in,
                  .K = shape.out,
                  .a = dy,
                  .b = weight,
                  .c = dx,
                  .transpose_b = true});
}

}  // namespace dsat::engine
