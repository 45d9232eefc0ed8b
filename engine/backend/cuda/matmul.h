// Matrix multiplications by cuBLASLt, whose algorithm is chosen once for each shape.
#ifndef DSAT_ENGINE_BACKEND_CUDA_MATMUL_H_
#define DSAT_ENGINE_BACKEND_CUDA_MATMUL_H_

#include <compare>
#include <cstdint>
#include <map>

#include "engine/backend/cuda/cublaslt.h"
#include "engine/backend/layer_ops.h"

namespace dsat::engine {

class CudaMatmul {
 public:
  // Loads nothing until the first multiplication.
  CudaMatmul() = default;
  CudaMatmul(const CudaMatmul&) = delete;
  CudaMatmul& operator=(const CudaMatmul&) = delete;
  ~CudaMatmul();

  // As op::Matmul, except that column_sums are written, not added to. a and b have one type; c
  // and the vectors have that type or f32. Returns 0, or, if cuBLASLt cannot do all of it in one
  // call, the status that says why; then nothing is done. Throws kUnavailable if the call fails.
  cublaslt::Status TryRun(const op::Matmul& args);
  // As TryRun, but throws kUnavailable in either case.
  void Run(const op::Matmul& args);

 private:
  // Everything that the choice of an algorithm depends on.
  struct Key {
    int64_t M, N, K;
    DType from, to;
    bool transpose_a, transpose_b;
    cublaslt::Epilogue epilogue;
    // Alignments in bytes, as far as the library asks; `vector` and `aux` are the epilogue's.
    uint32_t align_a, align_b, align_addend, align_c, align_vector, align_aux;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    cublaslt::Descriptor product = nullptr;
    cublaslt::Descriptor first = nullptr, second = nullptr, result = nullptr;
    cublaslt::Algorithm algorithm = {};
    cublaslt::Status state = 0;  // The status of the choice; not 0 if there is no algorithm.
  };

  void Open();
  Plan& PlanFor(const op::Matmul& args, cublaslt::Epilogue epilogue);
  Plan MakePlan(const op::Matmul& args, const Key& key) const;
  void SetPointers(const Plan& plan, const op::Matmul& args) const;
  template <typename T>
  void Set(cublaslt::Descriptor product, int attribute, T value) const;
  void Choose(const Key& key, Plan& plan) const;

  cublaslt::Api api_ = {};
  cublaslt::Handle handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_MATMUL_H_
