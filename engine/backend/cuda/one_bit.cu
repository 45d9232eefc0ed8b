// The kernels of 1-bit Adam: signs in packed bits.
#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {
namespace {

__global__ void SquaresKernel(double* parts, const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const double x = static_cast<double>(a[i]) + b[i];
    sum += x * x;
  }
  sum = BlockReduce(sum, Plus());
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void ScaleKernel(float* scale, const double* parts, int num_parts, int64_t n) {
  const double sum = SumParts(parts, num_parts);
  if (threadIdx.x == 0) *scale = static_cast<float>(sqrt(sum / static_cast<double>(n)));
}

// A byte of signs, eight elements, per turn.
__global__ void CompressKernel(float* error, uint8_t* signs, const float* scale,
                               const float* values, int64_t num_bytes) {
  const float size = *scale;
  for (int64_t byte = FirstIndex(); byte < num_bytes; byte += IndexStride()) {
    unsigned bits = 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
      const int64_t i = byte * 8 + bit;
      const float x = values[i] + error[i];
      const bool positive = x >= 0.0F;
      bits |= static_cast<unsigned>(positive) << bit;
      error[i] = x - (positive ? size : -size);
    }
    signs[byte] = static_cast<uint8_t>(bits);
  }
}

__global__ void DecompressKernel(float* values, const uint8_t* signs, const float* scale,
                                 float factor, int64_t n, bool accumulate) {
  const float size = *scale * factor;
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const bool positive = ((signs[i / 8] >> (i % 8)) & 1) != 0;
    values[i] = (accumulate ? values[i] : 0.0F) + (positive ? size : -size);
  }
}

}  // namespace

template <>
void RunOp(const op::CompressSigns& op, CudaWorkspace& workspace) {
  auto* parts = static_cast<double*>(workspace.Get(kSumWorkspaceBytes));
  auto *values = Data<float>(op.values), *error = Data<float>(op.error);
  const int64_t n = op.values.num_elems;
  const int num_parts = NumSumBlocks(n);
  Launch(SquaresKernel, {num_parts, kThreads}, parts, values, error, n);
  Launch(ScaleKernel, {1, kThreads}, op.scale, parts, num_parts, n);
  Launch(CompressKernel, {NumBlocks(n / 8), kThreads}, error, op.signs, op.scale, values, n / 8);
}

template <>
void RunOp(const op::DecompressSigns& op, CudaWorkspace&) {
  const int64_t n = op.values.num_elems;
  Launch(DecompressKernel, {NumBlocks(n), kThreads}, op.values, op.signs, op.scale, op.factor, n,
         op.accumulate);
}

}  // namespace dsat::engine::cuda
