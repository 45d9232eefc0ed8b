// Converts the engine's types to those of launch.h.
#ifndef DSAT_ENGINE_BACKEND_CUDA_VIEWS_H_
#define DSAT_ENGINE_BACKEND_CUDA_VIEWS_H_

#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

static_assert(static_cast<int>(DType::kF32) == static_cast<int>(cuda::Type::kF32) &&
              static_cast<int>(DType::kBF16) == static_cast<int>(cuda::Type::kBF16) &&
              static_cast<int>(DType::kF16) == static_cast<int>(cuda::Type::kF16));

inline cuda::View ViewOf(const Tensor& t) {
  return {t.data, t.num_elems, static_cast<cuda::Type>(t.dtype)};
}

// Throws kUnavailable if a launch has failed. Kernels run after their launch, so that the error may
// be that of an earlier kernel.
inline void CheckLaunch(const char* kernel) {
  CheckCuda(cudaGetLastError(), kernel);
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_VIEWS_H_
