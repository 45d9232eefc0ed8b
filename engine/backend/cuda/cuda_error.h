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

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_CUDA_ERROR_H_
