// Errors of CUDA calls.
#ifndef DSAT_ENGINE_BACKEND_CUDA_CUDA_ERROR_H_
#define DSAT_ENGINE_BACKEND_CUDA_CUDA_ERROR_H_

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace dsat::engine {

// Throws kUnavailable: after an error the GPU is not to be used any more by this process.
inline void CheckCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  Throw(ErrorCode::kUnavailable, "GPU: {}: {} ({})", call, cudaGetErrorString(error),
        cudaGetErrorName(error));
}

// cudaMalloc. Throws kResourceExhausted, an outcome of a trial, if the GPU has no more.
inline void* AllocateOnGpu(size_t bytes, const char* use) {
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, bytes);
  if (error != cudaErrorMemoryAllocation) {
    CheckCuda(error, "cudaMalloc");
    return block;
  }
  cudaGetLastError();  // Or the next call would report it again.
  size_t free_bytes = 0, total_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  Throw(ErrorCode::kResourceExhausted, "GPU memory: no {} bytes for {}: {} of {} free", bytes, use,
        free_bytes, total_bytes);
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_CUDA_ERROR_H_
