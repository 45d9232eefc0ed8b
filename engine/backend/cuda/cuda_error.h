// Errors of CUDA calls.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/error.h"
#include "engine/core/arena.h"

namespace dsat::engine {

// Throws kUnavailable if `error` is one. This process must not use the GPU afterwards.
inline void CheckCuda(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return;
  Throw(ErrorCode::kUnavailable, "GPU: {}: {} ({})", call, cudaGetErrorString(error),
        cudaGetErrorName(error));
}

// Calls cudaMalloc. Returns nullptr if the GPU lacks memory.
inline void* TryAllocateOnGpu(size_t bytes) {
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, bytes);
  if (error != cudaErrorMemoryAllocation) {
    CheckCuda(error, "cudaMalloc");
    return block;
  }
  cudaGetLastError();  // Clears the error, which the next call would report again.
  return nullptr;
}

// The same, but throws OutOfMemory.
inline void* AllocateOnGpu(size_t bytes, const char* use) {
  if (void* block = TryAllocateOnGpu(bytes)) return block;
  size_t free_bytes = 0, total_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  throw OutOfMemory(ErrorCode::kResourceExhausted,
                    fmt::format("GPU memory: no {} bytes for {}: {} of {} free", bytes, use,
                                free_bytes, total_bytes));
}

}  // namespace dsat::engine
