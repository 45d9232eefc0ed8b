// Matrix products by cuBLASLt, the algorithm for a shape chosen once.
#ifndef DSAT_ENGINE_BACKEND_CUDA_MATMUL_H_
#define DSAT_ENGINE_BACKEND_CUDA_MATMUL_H_

#include <cstdint>
#include <map>
#include <tuple>

#include "engine/backend/cuda/cublaslt.h"
#include "engine/backend/kernels.h"

namespace dsat::engine {

class CudaMatmul {
 public:
  // Nothing is loaded until the first product.
  CudaMatmul() = default;
  CudaMatmul(const CudaMatmul&) = delete;
  CudaMatmul& operator=(const CudaMatmul&) = delete;
  ~CudaMatmul();

  // As Kernels::Matmul; a bias must have c's type. Throws kUnavailable if cuBLASLt fails.
  void Run(const MatmulArgs& args);

 private:
  // All that the choice of an algorithm depends on: sizes, types, flags, alignments in bytes.
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType, bool, bool, bool, uint32_t,
                         uint32_t, uint32_t>;
  struct Plan {
    cublaslt::Descriptor product = nullptr;
    cublaslt::Descriptor first = nullptr, second = nullptr, result = nullptr;
    cublaslt::Algorithm algorithm = {};
  };

  void Open();
  Plan& PlanFor(const MatmulArgs& args);
  Plan MakePlan(const MatmulArgs& args, const Key& key) const;
  void Choose(const Key& key, Plan& plan) const;

  cublaslt::Api api_ = {};
  cublaslt::Handle handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_MATMUL_H_
