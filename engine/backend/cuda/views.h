// Converts the engine's types to those of launch.h, and checks launches.
#ifndef DSAT_ENGINE_BACKEND_CUDA_VIEWS_H_
#define DSAT_ENGINE_BACKEND_CUDA_VIEWS_H_

#include <type_traits>

#include "engine/backend/cuda/cuda_error.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/kernels.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

static_assert(static_cast<int>(DType::kF32) == static_cast<int>(cuda::Type::kF32) &&
              static_cast<int>(DType::kBF16) == static_cast<int>(cuda::Type::kBF16) &&
              static_cast<int>(DType::kF16) == static_cast<int>(cuda::Type::kF16));

inline cuda::View ViewOf(const Tensor& t) {
  return {t.data, t.num_elems, static_cast<cuda::Type>(t.dtype)};
}

// Returns backend.Launch(op). Throws kUnavailable naming the kernel if a launch has failed, and
// OutOfMemory if the GPU lacks memory to load it. Kernels run after their launch, so that
// the error may be that of an earlier kernel.
template <typename Backend, typename Op>
ResultOf<Op> LaunchAndCheck(Backend& backend, const Op& op) {
  const auto check = [] {
    const cudaError_t error = cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
      throw OutOfMemory(ErrorCode::kResourceExhausted,
                        fmt::format("GPU memory: none left to load {}", NameOf<Op>()));
    CheckCuda(error, NameOf<Op>());
  };
  if constexpr (std::is_void_v<ResultOf<Op>>) {
    backend.Launch(op);
    check();
  } else {
    const ResultOf<Op> result = backend.Launch(op);
    check();
    return result;
  }
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_VIEWS_H_
