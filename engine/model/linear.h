// The affine map that layers are made of: y = x W + b.
#pragma once

#include <cstdint>

#include "engine/backend/kernels.h"

namespace dsat::engine {

// N rows, from `in` to `out` channels.
struct LinearShape {
  int64_t N = 0, in = 0, out = 0;
};

// The epilogue of the matrix multiplication, as in op::Matmul. Empty tensors leave it out.
struct LinearExtras {
  Tensor addend = {};       // (N, out), added to y
  Tensor before_gelu = {};  // (N, out) = the affine map, y = gelu of it
};

// y (N, out) = x (N, in) * weight (in, out) + bias (out); no bias if it is empty.
void LinearForward(Kernels& kernels, Tensor y, Tensor x, Tensor weight, Tensor bias,
                   const LinearShape& shape, const LinearExtras& extras = {});
// dweight (in, out) += x^T dy; dbias (out) += column sums of dy. An empty dbias is not computed,
// and nothing is if dweight is empty: a layer is frozen as a whole.
void LinearParamGrads(Kernels& kernels, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                      const LinearShape& shape);
// dx (N, in) = dy (N, out) * weight^T; if x was gelu of gelu_input (N, in), dx is that one's
// gradient.
void LinearInputGrad(Kernels& kernels, Tensor dx, Tensor dy, Tensor weight,
                     const LinearShape& shape, Tensor gelu_input = {});

}  // namespace dsat::engine
