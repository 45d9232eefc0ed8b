// The device of a rank that computes on a GPU.
#ifndef DSAT_ENGINE_BACKEND_CUDA_CUDA_DEVICE_H_
#define DSAT_ENGINE_BACKEND_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "engine/backend/cuda/plugin.h"
#include "engine/backend/device.h"
#include "engine/backend/kernels.h"
#include "engine/comm/process_group.h"

namespace dsat::engine {

// Opens a GPU. Ranks get the GPUs of `plugin` in turn by `local_rank`. Throws kUnavailable saying
// what is missing.
std::unique_ptr<Device> OpenCudaDevice(const CudaPlugin& plugin, int local_rank, int num_threads);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_CUDA_DEVICE_H_
