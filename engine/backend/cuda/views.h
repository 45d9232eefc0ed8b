// From engine types to launch.h's.
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

// What went wrong so far: kernels run later than they are launched, so that it may be one before.
inline void CheckLaunch(const char* kernel) {
  CheckCuda(cudaGetLastError(), kernel);
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_VIEWS_H_
