// The device's side of CUDA for g++: what a kernel is written in, and how it is started.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tests/engine/backend/emulated_cuda/grid.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// All thread-local memory of a library is shared memory: a grid runs on one thread, which fills it
// before each block.
#define __shared__ static thread_local
#define DSAT_DYNAMIC_SHARED(Type, name) \
  Type* const name = static_cast<Type*>(emulated_cuda::DynamicShared())

using std::max;
using std::min;

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using emulated_cuda::blockDim;
using emulated_cuda::blockIdx;
using emulated_cuda::gridDim;
using emulated_cuda::Site;
using emulated_cuda::threadIdx;

inline void __syncthreads(Site site = Site::current()) {
  emulated_cuda::SyncBlock(0, site);
}
inline int __syncthreads_count(int value, Site site = Site::current()) {
  return emulated_cuda::SyncBlock(value, site);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU, Site site = Site::current()) {
  emulated_cuda::Exchange(mask, char{}, site);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, Site site = Site::current()) {
  return emulated_cuda::Exchange(mask, value, site)[lane % emulated_cuda::kLanes];
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, Site site = Site::current()) {
  return emulated_cuda::Exchange(mask, value, site)[emulated_cuda::Lane() ^ bits];
}

template <typename T>
unsigned __match_any_sync(unsigned mask, T value, Site site = Site::current()) {
  const auto values = emulated_cuda::Exchange(mask, value, site);
  unsigned same = 0;
  for (int lane = 0; lane < emulated_cuda::kLanes; ++lane)
    same |= (values[lane] == value ? 1U : 0U) << lane;
  return same;
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}

struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace emulated_cuda {

// Ends the program if it is an address of host memory.
void CheckArgument(int position, const void* data);
cudaError_t Enqueue(const Launch& launch, cudaStream_t stream);
[[maybe_unused]] static thread_local char of_this_library;

}  // namespace emulated_cuda

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  return [&](Params... params) {
    emulated_cuda::Launch launch;
    launch.kernel = reinterpret_cast<const void*>(kernel);
    launch.grid = config->gridDim;
    launch.block = config->blockDim;
    launch.dynamic_bytes = config->dynamicSmemBytes;
    launch.shared = [] { return static_cast<void*>(&emulated_cuda::of_this_library); };
    [[maybe_unused]] int position = 0;
    (
        [&] {
          if constexpr (std::is_pointer_v<Params>) emulated_cuda::CheckArgument(position, params);
          ++position;
        }(),
        ...);
    launch.thread = [=] { kernel(params...); };
    return emulated_cuda::Enqueue(launch, config->stream);
  }(std::forward<Args>(args)...);
}
