// Starts the kernels of the .cu files: in plain C++, so that compilers other than nvcc accept them.
#ifndef DSAT_ENGINE_BACKEND_CUDA_LAUNCH_KERNEL_H_
#define DSAT_ENGINE_BACKEND_CUDA_LAUNCH_KERNEL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

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

// kernel<<<grid, block, shared_bytes, Stream()>>>(args...). cudaGetLastError returns any error.
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
