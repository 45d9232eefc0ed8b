// GPUs as devices, where dsat was built with CUDA; elsewhere no_cuda.cc says so.
#ifndef DSAT_ENGINE_BACKEND_CUDA_CUDA_DEVICE_H_
#define DSAT_ENGINE_BACKEND_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "engine/backend/device.h"

namespace dsat::engine {

// GPU number `local_rank`, in turn. Throws kUnavailable saying what is missing.
std::unique_ptr<Device> OpenCudaDevice(int local_rank, int num_threads);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_CUDA_DEVICE_H_
