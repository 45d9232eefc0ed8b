// How the .cu files start kernels: in plain C++, so that another compiler takes them, too.
#ifndef DSAT_ENGINE_BACKEND_CUDA_LAUNCH_KERNEL_H_
#define DSAT_ENGINE_BACKEND_CUDA_LAUNCH_KERNEL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

// Shared memory of a kernel whose size its launch gives. A kernel has at most one; all templates of
// a file name it alike, with one type.
#ifndef DSAT_DYNAMIC_SHARED
#define DSAT_DYNAMIC_SHARED(Type, name) extern __shared__ Type name[]
#endif

namespace dsat::engine::cuda {

// What all work of the calling thread goes to, in the order of its calls; that of other threads is
// beside it.
inline cudaStream_t Stream() {
  return cudaStreamPerThread;
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  int shared_bytes = 0;  // Of DSAT_DYNAMIC_SHARED.
};

// kernel<<<grid, block, shared_bytes, Stream()>>>(args...). What goes wrong is cudaGetLastError's.
template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), const LaunchShape& shape, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = Stream();
  cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace dsat::engine::cuda

#endif  // DSAT_ENGINE_BACKEND_CUDA_LAUNCH_KERNEL_H_
