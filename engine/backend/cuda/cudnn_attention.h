// Attention's forward pass by cuDNN, where that is found and agrees with our own kernel.
#ifndef DSAT_ENGINE_BACKEND_CUDA_CUDNN_ATTENTION_H_
#define DSAT_ENGINE_BACKEND_CUDA_CUDNN_ATTENTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "engine/backend/cuda/cuda_stream.h"
#include "engine/backend/cuda/cudnn.h"
#include "engine/backend/cuda/launch.h"

namespace dsat::engine {

// The first call of a shape makes a plan and computes the operands by both kernels. cuDNN is used
// for the shape if they agree. If they do not, or a call of cuDNN fails, one line in the log says
// so and this object uses cuDNN no more. The choice does not depend on measured times. Not
// thread-safe.
class CudnnAttention {
 public:
  explicit CudnnAttention(std::shared_ptr<CudaWorkspace> workspace);
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;
  ~CudnnAttention();

  // cuda::AttentionForward. Returns false, and may have written the results, if our own kernel has
  // to do it. The plan's workspace is the workspace's.
  bool Forward(const cuda::AttentionArgs& args);

 private:
  class Plan;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, cuda::Type>;

  // nullptr if the library has no plan for the shape. Throws what makes cuDNN unusable.
  Plan* PlanFor(const cuda::AttentionArgs& args);
  // Throws if `plan` computes something else than our kernel.
  void Compare(Plan& plan, const cuda::AttentionArgs& args);

  const std::shared_ptr<CudaWorkspace> workspace_;
  cudnn::Api api_ = {};
  cudnn::Handle handle_ = nullptr;
  bool is_usable_ = true;
  bool is_open_ = false;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_CUDNN_ATTENTION_H_
