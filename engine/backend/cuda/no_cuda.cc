// dsat without CUDA: every question about GPUs has one answer.
#include "base/error.h"
#include "engine/backend/cuda/plugin.h"

namespace dsat::engine {

const CudaPlugin& LoadCudaPlugin() {
  Throw(
      ErrorCode::kUnavailable,
      "dsat was built without CUDA; build it with the CUDA toolkit (cmake -DDSAT_CUDA=ON), or use "
      "device cpu");
}

}  // namespace dsat::engine
