// The device that a run asks for.
#include "base/error.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/device.h"

namespace dsat::engine {

std::unique_ptr<Device> OpenDevice(const std::string& name, int local_rank, int num_threads) {
  if (name == "cpu") return MakeCpuDevice(num_threads);
  if (name != "cuda" && name != "auto") {
    Throw(ErrorCode::kInvalidArgument, "device is \"{}\"; expected cpu, cuda or auto", name);
  }
  const CudaStatus status = ProbeCuda();
  if (status.problem.empty()) return OpenCudaDevice(LoadCudaPlugin(), local_rank, num_threads);
  if (name == "auto") return MakeCpuDevice(num_threads);
  Throw(ErrorCode::kUnavailable, "device is \"cuda\": {}", status.problem);
}

}  // namespace dsat::engine
