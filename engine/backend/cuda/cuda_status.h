// Which GPUs this machine has, and what is missing to use them.
#ifndef DSAT_ENGINE_BACKEND_CUDA_CUDA_STATUS_H_
#define DSAT_ENGINE_BACKEND_CUDA_CUDA_STATUS_H_

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

// Versions as CUDA numbers them, 13000 for 13.0; 0: not there.
struct CudaStatus {
  int toolkit_version = 0;  // That dsat was built with.
  int driver_version = 0;   // The newest CUDA that the driver can run.
  std::vector<CudaGpu> gpus;
  std::string problem;  // Why no GPU can be used, and what to do; empty if one can.
};

// Loads what it needs to find out. Never throws for what a machine lacks. Leaves no context on a
// GPU, which would take some hundred MiB of it until this process ends.
CudaStatus ProbeCuda();
// Of its memory, what nobody has taken. It makes a context. REQUIRES: as below. Throws
// kUnavailable.
int64_t FreeCudaMemory(int gpu);

// In bf16; the host's memory is page-locked. REQUIRES: the GPU is in a ProbeCuda without a problem.
// Throws kUnavailable.
DeviceSpeed MeasureCudaSpeed(int gpu);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_CUDA_STATUS_H_
