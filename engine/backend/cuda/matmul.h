// Matrix multiplications by cuBLASLt, whose algorithm is measured once for each shape.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

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
  // call, or Avoid has said so, the status that says why; then nothing is done. An algorithm that
  // fails is not tried again. Throws OutOfMemory if the library lacks memory.
  cublaslt::Status TryRun(const op::Matmul& args);
  // As TryRun, but throws kUnavailable with the status.
  void Run(const op::Matmul& args);

  // Whether this process has kept no choice of an algorithm.
  bool IsNew(const op::Matmul& args);
  // Runs the algorithms that the library recommends, and takes its first one unless another takes
  // less than `kClearly` of the time. Returns the milliseconds of a product; 0 if there is no
  // algorithm. REQUIRES: c is not the addend.
  double Measure(const op::Matmul& args);
  // Keep makes the choice, which is the library's own before Measure, that of all threads, so that
  // all products of a shape have the same bits in a process. Avoid makes their TryRun refuse such a
  // product. REQUIRES: one thread at a time chooses, and only what is new.
  void Keep(const op::Matmul& args);
  void Avoid(const op::Matmul& args);
  static constexpr double kClearly = 0.97;

 private:
  // Everything that the choice of an algorithm depends on.
  struct Key {
    int64_t M, N, K;
    DType from, to;
    bool transpose_a, transpose_b;
    cublaslt::Epilogue epilogue;
    // Alignments in bytes, at most kMostAlignment; `vector` and `aux` are the epilogue's.
    uint32_t align_a, align_b, align_addend, align_c, align_vector, align_aux;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    cublaslt::Descriptor product = nullptr;
    cublaslt::Descriptor first = nullptr, second = nullptr, result = nullptr;
    std::vector<cublaslt::Algorithm> algorithms = {};  // The one to use comes first.
    cublaslt::Status state = 0;  // The last status of the choice or of a product that failed.
    bool is_kept = false;        // `algorithms` are the process's choice.
  };
  // The choices that the process keeps, and what guards them.
  static inline std::mutex kept_mutex;
  static inline std::map<Key, std::vector<cublaslt::Algorithm>> kept;
  static void Store(const op::Matmul& args, const std::vector<cublaslt::Algorithm>& algorithms);
  void Open();
  static Key KeyOf(const op::Matmul& args, cublaslt::Epilogue epilogue);
  // nullptr if no epilogue does all of it.
  Plan* PlanFor(const op::Matmul& args);
  static void TakeKept(const Key& key, Plan& plan);
  cublaslt::Status Multiply(const Plan& plan, const cublaslt::Algorithm& algorithm,
                            const op::Matmul& args) const;
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
