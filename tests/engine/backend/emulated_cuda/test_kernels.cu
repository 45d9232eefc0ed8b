// Kernels that do what the emulator is to show.
#include <cuda_runtime.h>

#include "tests/engine/backend/emulated_cuda/test_kernels.h"

namespace emulated_cuda {
namespace {

constexpr unsigned kThreads = 64;

template <typename... Params, typename... Args>
void Start(void (*kernel)(Params...), unsigned threads, size_t shared_bytes, cudaStream_t stream,
           Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchKernelEx(&config, kernel, args...);
}

__global__ void AddOneKernel(float* to, const float* from) {
  *to = *from + 1;
}

__global__ void ReverseKernel(float* to, const float* from, bool with_barrier) {
  __shared__ float numbers[kThreads];
  numbers[threadIdx.x] = from[threadIdx.x];
  if (with_barrier) __syncthreads();
  to[threadIdx.x] = numbers[kThreads - 1 - threadIdx.x];
}

__global__ void ReadSharedKernel(float* to, bool writes) {
  __shared__ float number;
  DSAT_DYNAMIC_SHARED(float, numbers);
  if (writes) number = 1;
  to[0] = number;
  to[1] = numbers[3];
}

__global__ void WarpSumKernel(float* to, const float* from) {
  float sum = from[threadIdx.x];
  for (int bits = 16; bits > 0; bits /= 2)
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, bits);
  to[threadIdx.x] = sum;
}

__global__ void HalfWaitsKernel(bool returns) {
  if (threadIdx.x < kThreads / 2) {
    __syncthreads();
    return;
  }
  if (returns) return;
  __syncthreads();
}

__global__ void WriteAtKernel(float* data, int i) {
  data[i] = 0;
}

__global__ void OverrunKernel() {
  DSAT_DYNAMIC_SHARED(float, numbers);
  for (int i = 0; i <= 256; ++i)
    numbers[i] = 0;
}

__global__ void NothingKernel() {}

}  // namespace

void LaunchAddOne(float* to, const float* from, cudaStream_t stream) {
  Start(AddOneKernel, 1, 0, stream, to, from);
}
void LaunchReverse(float* to, const float* from, bool with_barrier) {
  Start(ReverseKernel, kThreads, 0, cudaStreamLegacy, to, from, with_barrier);
}
void LaunchReadShared(float* to) {
  Start(ReadSharedKernel, 1, 64, cudaStreamLegacy, to, /*writes=*/false);
}
void LaunchWarpSum(float* to, const float* from) {
  Start(WarpSumKernel, kThreads, 0, cudaStreamLegacy, to, from);
}
void LaunchHalfWaits(bool returns) {
  Start(HalfWaitsKernel, kThreads, 0, cudaStreamLegacy, returns);
}
void LaunchWriteAt(float* data, int i) {
  Start(WriteAtKernel, 1, 0, cudaStreamLegacy, data, i);
}
void LaunchOverrunShared() {
  Start(OverrunKernel, 1, 1024, cudaStreamLegacy);
}
cudaError_t LaunchWithShared(int bytes, bool allowed) {
  if (allowed) {
    const cudaError_t error =
        cudaFuncSetAttribute(NothingKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  Start(NothingKernel, 1, static_cast<size_t>(bytes), cudaStreamLegacy);
  return cudaGetLastError();
}

}  // namespace emulated_cuda
