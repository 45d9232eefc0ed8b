// Shared by the .cu files: conversions, sums over a block, launch shapes.
//
// No sum depends on timing: there are no floating-point atomics.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/launch_kernel.h"

namespace dsat::engine::cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr float kNormEpsilon = 1e-5F;  // The epsilon of layer norm and group norm.

__device__ inline float ToFloat(float x) {
  return x;
}
__device__ inline float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float ToFloat(__half x) {
  return __half2float(x);
}
template <typename T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// Calls fn(value of the C++ type).
template <typename Fn>
void Visit(DType type, const Fn& fn) {
  switch (type) {
    case DType::kF32:
      return fn(float{});
    case DType::kBF16:
      return fn(__nv_bfloat16{});
    case DType::kF16:
      return fn(__half{});
  }
}
template <typename T>
T* Data(const Tensor& t) {
  return static_cast<T*>(t.data);
}

// Blocks for a grid-stride loop over n elements.
inline int NumBlocks(int64_t n) {
  constexpr int64_t kMaxBlocks = 4096;
  return static_cast<int>(std::min((n + kThreads - 1) / kThreads, kMaxBlocks));
}
// The number of blocks of a sum over n elements. Each gives a partial sum. It depends on n alone,
// so that what a block sums does not depend on the device.
constexpr int kMaxSumBlocks = kThreads;
constexpr int64_t kSumWorkspaceBytes = kMaxSumBlocks * int64_t{sizeof(double)};
inline int NumSumBlocks(int64_t n) {
  constexpr int64_t kLeastElems = 4 * kThreads;
  return static_cast<int>(
      std::clamp<int64_t>((n + kLeastElems - 1) / kLeastElems, 1, kMaxSumBlocks));
}
__device__ inline int64_t FirstIndex() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline int64_t IndexStride() {
  return int64_t{gridDim.x} * blockDim.x;
}

constexpr float kLog2E = 1.44269504089F;

// 2^x within 2 units of the last place; 0 for -inf. A program that is compiled without nvcc must
// define it.
#ifdef __CUDACC__
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
float Exp2(float x);
#endif

struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename T, typename Op>
__device__ T WarpReduce(T x, Op op) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = op(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

// Returns the result to every thread of a block of kBlockThreads. All of them must call it.
template <int kBlockThreads = kThreads, typename T, typename Op>
__device__ T BlockReduce(T x, Op op) {
  __shared__ T parts[kBlockThreads / kWarp];
  x = WarpReduce(x, op);
  __syncthreads();  // All threads have read the result of the call before.
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  T result = parts[0];
  for (int i = 1; i < kBlockThreads / kWarp; ++i)
    result = op(result, parts[i]);
  return result;
}

// Returns the sum of the parts to every thread of a block of kThreads. All of them must call it.
__device__ inline double SumParts(const double* parts, int num_parts) {
  const int i = static_cast<int>(threadIdx.x);
  return BlockReduce(i < num_parts ? parts[i] : 0.0, Plus());
}
static_assert(kMaxSumBlocks <= kThreads, "SumParts: a thread for each part");

}  // namespace dsat::engine::cuda
