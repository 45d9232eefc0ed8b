// The interface of libdsat-cuda.so, which holds all code that needs CUDA. It is opened when a GPU
// is asked for, so that everything else starts without it and works where there is no driver.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/kernels.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {

class Device;   // engine/backend/device.h
class Watches;  // engine/backend/cuda/watches.h

// Functions of the library; they throw kUnavailable naming the CUDA call that failed. `gpu` is an
// index into CudaStatus::gpus.
struct CudaPlugin {
  CudaStatus (*probe)();
  int64_t (*free_bytes)(int gpu);
  std::unique_ptr<Kernels> (*make_kernels)(int gpu, std::shared_ptr<Watches> watches);
  std::unique_ptr<MemorySource> (*make_memory)(int gpu);
  // Pinned host memory. Its Allocate returns nullptr if the system refuses to lock pages.
  std::unique_ptr<MemorySource> (*make_host_memory)(int gpu);
};

// Opens a library with this interface and never closes it, since objects that it made may live
// until the program ends. Throws kUnavailable if the library is missing or has another version.
const CudaPlugin& OpenCudaPlugin(const std::filesystem::path& library);
// Opens libdsat-cuda.so at the first call. Throws kUnavailable if it is not there, as it is not if
// dsat was built without CUDA.
const CudaPlugin& LoadCudaPlugin();

// Opens a GPU. Ranks get the GPUs of `plugin` in turn by `local_rank`. Throws kUnavailable saying
// what is missing.
std::unique_ptr<Device> OpenCudaDevice(const CudaPlugin& plugin, int local_rank, int num_threads);

}  // namespace dsat::engine
