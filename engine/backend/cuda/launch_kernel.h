// Starts the kernels of the .cu files: in plain C++, so that compilers other than nvcc accept them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#include "engine/core/tensor.h"

// Declares shared memory whose size the launch of the kernel gives. A kernel has at most one such
// array, which has the same name and type in all templates of a file.
#ifndef DSAT_DYNAMIC_SHARED
#define DSAT_DYNAMIC_SHARED(Type, name) extern __shared__ Type name[]
#endif

namespace dsat::engine::cuda {

// The stream of the calling thread, which runs the thread's work in the order of its calls and
// concurrently with the work of other threads.
inline cudaStream_t Stream() {
  return cudaStreamPerThread;
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  int shared_bytes = 0;  // The size of DSAT_DYNAMIC_SHARED.
};

// The argument that a kernel gets: of a tensor its data, and everything else as it is.
template <typename Param, typename Arg>
decltype(auto) Passed(Arg&& arg) {
  if constexpr (std::is_same_v<std::remove_cvref_t<Arg>, Tensor>) {
    return static_cast<Param>(arg.data);
  } else {
    return std::forward<Arg>(arg);
  }
}

// kernel<<<grid, block, shared_bytes, Stream()>>>(args...), unless the grid is empty. A tensor has
// the type of its parameter. cudaGetLastError returns any error.
template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), const LaunchShape& shape, Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = Stream();
  cudaLaunchKernelEx(&config, kernel, Passed<Params>(std::forward<Args>(args))...);
}

}  // namespace dsat::engine::cuda
