// The kernels of a GPU, which the .cu files implement.
#pragma once

#include <cstdint>

#include "engine/backend/cuda/cuda_stream.h"
#include "engine/backend/kernels.h"
#include "engine/backend/optimizer_kernels.h"

namespace dsat::engine::cuda {

// Does what engine/backend/layer_ops.h and optimizer_kernels.h say of the kernel, on the calling
// thread's stream, in the order of its calls. cudaGetLastError returns any error of the launch. The
// .cu file of each family has the specializations of its kernels; op::Matmul has none (matmul.h).
template <typename Op>
void RunOp(const Op& op, CudaWorkspace& workspace);

// linear.cu: db (N) += the sums of the columns of dy (M, N), and y (M, N) += bias (N).
void BiasGrad(const Tensor& db, const Tensor& dy, int64_t M, int64_t N, CudaWorkspace& workspace);
void AddBias(const Tensor& y, const Tensor& bias, int64_t M, int64_t N);

}  // namespace dsat::engine::cuda
