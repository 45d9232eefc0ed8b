// Kernels that do what the emulator is to show. Data is device memory unless said otherwise.
#pragma once

#include <cuda_runtime_api.h>

namespace emulated_cuda {

// *to = *from + 1, by one thread.
void LaunchAddOne(float* to, const float* from, cudaStream_t stream);
// to[0, 64) = from, the other way round, by way of shared memory; `with_barrier`: as it should be.
void LaunchReverse(float* to, const float* from, bool with_barrier);
// to[0, 2) = a number of static and of dynamic shared memory that nobody wrote.
void LaunchReadShared(float* to);
// to[0, 64) = the sum of a warp's from, by shuffles.
void LaunchWarpSum(float* to, const float* from);
// Half of a block waits, the other half returns, or waits elsewhere.
void LaunchHalfWaits(bool returns);
// data[i] = 0.
void LaunchWriteAt(float* data, int i);
// Writes dynamic shared memory of 1024 bytes, and what follows it.
void LaunchOverrunShared();
// Asks for `bytes` of dynamic shared memory and does nothing.
cudaError_t LaunchWithShared(int bytes, bool allowed);

}  // namespace emulated_cuda
