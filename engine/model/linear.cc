// The affine map that layers are made of.
#include "engine/model/linear.h"

namespace dsat::engine {

void LinearForward(Kernels& kernels, Tensor y, Tensor x, Tensor weight, Tensor bias,
                   const LinearShape& shape, const LinearExtras& extras) {
  kernels.Run(op::Matmul{.M = shape.N,
                         .N = shape.out,
                         .K = shape.in,
                         .a = x,
                         .b = weight,
                         .c = y,
                         .bias = bias,
                         .addend = extras.addend,
                         .before_gelu = extras.before_gelu});
}

void LinearParamGrads(Kernels& kernels, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                      const LinearShape& shape) {
  if (dweight.num_elems == 0) return;
  kernels.Run(op::Matmul{.M = shape.in,
                         .N = shape.out,
                         .K = shape.N,
                         .a = x,
                         .b = dy,
                         .c = dweight,
                         .transpose_a = true,
                         .addend = dweight,
                         .column_sums = dbias});
}

void LinearInputGrad(Kernels& kernels, Tensor dx, Tensor dy, Tensor weight,
                     const LinearShape& shape, Tensor gelu_input) {
  kernels.Run(op::Matmul{.M = shape.N,
                         .N = shape.in,
                         .K = shape.out,
                         .a = dy,
                         .b = weight,
                         .c = dx,
                         .transpose_b = true,
                         .gelu_input = gelu_input});
}

}  // namespace dsat::engine
