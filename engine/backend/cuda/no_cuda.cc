// dsat without CUDA: every question about GPUs has one answer.
#include "base/error.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/cuda_status.h"

namespace dsat::engine {

CudaStatus ProbeCuda() {
  CudaStatus status;
  status.problem =
      "dsat was built without CUDA; expected a build with the CUDA toolkit (cmake -DDSAT_CUDA=ON), "
      "or device cpu";
  return status;
}

CudaLink MeasureCudaLink(int) {
  Throw(ErrorCode::kUnavailable, "{}", ProbeCuda().problem);
}

std::unique_ptr<Device> OpenCudaDevice(int, int) {
  Throw(ErrorCode::kUnavailable, "{}", ProbeCuda().problem);
}

}  // namespace dsat::engine
