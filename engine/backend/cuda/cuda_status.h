// Says which GPUs this machine has, and what is missing to use them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/device_speed.h"

namespace dsat::engine {

struct CudaGpu {
  std::string name;
  std::string address;  // On the PCI bus: "0000:3b:00". The same from every process.
  int64_t memory_bytes = 0;
  int capability = 0;  // 90 for sm_90.
  int num_multiprocessors = 0;
};

// Versions are numbered as CUDA does, 13000 for 13.0; 0 means that it is not there.
struct CudaStatus {
  int toolkit_version = 0;  // The version that dsat was built with.
  int driver_version = 0;   // The newest CUDA that the driver can run.
  std::vector<CudaGpu> gpus;
  std::string cublas_path;  // Empty if it was not found, or not looked for.
  std::string problem;      // Why no GPU can be used, and what to do; empty if one can.
};

// Finds the GPUs. Never throws for what a machine lacks. Leaves no context on a GPU, which would
// occupy some hundred MiB of its memory until this process ends.
CudaStatus ProbeCuda();
// The bytes of the GPU's memory that are free. It makes a context. REQUIRES: as below. Throws
// kUnavailable.
int64_t FreeCudaMemory(int gpu);

// Measures the speed in bf16, and of copies from pinned host memory. REQUIRES: the GPU is in a
// result of ProbeCuda without a problem. Throws kUnavailable.
DeviceSpeed MeasureCudaSpeed(int gpu);

}  // namespace dsat::engine
