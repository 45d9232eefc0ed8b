// Kernels on the CPU: the blocks of a grid one after another, the threads of a block as fibers that
// change places only where they wait for each other.
//
// Launches do what a GPU may do and a run of tests would miss: shared memory starts as NaN, and
// blocks, and the threads of a block, come in ascending order in one launch and in descending order
// in the next, so that a missing barrier shows in one of them. A barrier that not all threads reach
// ends the program with the lines at which they wait.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <source_location>
#include <type_traits>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulated_cuda {

using Site = std::source_location;

constexpr int kLanes = 32;
// A block's size, unless more is asked for.
constexpr size_t kDefaultSharedBytes = size_t{48} << 10;
// The most that a block of compute capability 8.0 may have. It is 99 KiB, as with 8.6, where
// EMULATED_CUDA_WITH_SMALL_SHARED_MEMORY is in the environment.
constexpr size_t kMaxSharedBytes = size_t{163} << 10;
// or 99 KiB, as of 8.6, where EMULATED_CUDA_WITH_SMALL_SHARED_MEMORY is in the environment.
inline size_t MaxSharedBytes() {
  return std::getenv("EMULATED_CUDA_WITH_SMALL_SHARED_MEMORY") ? size_t{99} << 10 : kMaxSharedBytes;
}

struct Launch {
  const void* kernel = nullptr;
  dim3 grid, block;
  size_t dynamic_bytes = 0;
  std::function<void()> thread;  // The kernel with its arguments.
  // Gives an address in the thread-local memory of the kernel's library, which is the kernels'
  // static shared memory.
  void* (*shared)() = nullptr;
};

// Runs the grid on the calling thread; not from two at a time. REQUIRES: a launch that a GPU would
// take.
void RunGrid(const Launch& launch, bool descending);

// For kernels: of the running thread.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
int Lane();
// The block's dynamic shared memory, a multiple of 256 bytes, aligned to as many; what follows it
// cannot be touched.
void* DynamicShared();

// Waits until all threads of the block have come here; gives how many brought other than 0.
int SyncBlock(int value, const Site& site);

// Waits until all lanes of this warp, which `mask` must name, have come here, each with `bytes` (at
// most kExchangeBytes) at `mine`. Gives all of them, lane by lane: valid until this lane's next.
constexpr size_t kExchangeBytes = 64;
const std::byte* ExchangeBytes(unsigned mask, const void* mine, size_t bytes, const Site& site);

// The values that the lanes of a warp brought.
template <typename T>
struct Lanes {
  const std::byte* first;

  T operator[](int lane) const {
    T value;
    std::memcpy(&value, first + static_cast<size_t>(lane) * sizeof(T), sizeof(T));
    return value;
  }
};
template <typename T>
Lanes<T> Exchange(unsigned mask, const T& mine, const Site& site) {
  static_assert(sizeof(T) <= kExchangeBytes && std::is_trivially_copyable_v<T>);
  return {ExchangeBytes(mask, &mine, sizeof(T), site)};
}

}  // namespace emulated_cuda
