// Matrix multiplications through oneDNN.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/backend/layer_ops.h"

namespace dsat::engine {

// c (M, N) = op(a) (M, K) * op(b) (K, N) [+ c]; row-major with row strides lda, ldb, ldc. Elem is
// float or Bf16 (engine/backend/cpu/vec.h).
template <typename Elem>
struct GemmArgs {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // c += instead of c =
  int64_t M = 0, N = 0, K = 0;
  const Elem* a = nullptr;
  int64_t lda = 0;
  const Elem* b = nullptr;
  int64_t ldb = 0;
  float* c = nullptr;
  int64_t ldc = 0;
};

// Runs on the calling thread alone, also outside of parallel regions.
void SgemmOnThisThread(const GemmArgs<float>& args);

// Matrix multiplications of any dtypes with a bias and an addend, which initialize each tile of c.
//
// The shape alone determines how c is divided into tiles, and each tile is one oneDNN call on one
// thread. oneDNN itself would split K by the number of threads, and the sums would depend on it.
// f32 uses sgemm. bf16 uses matmul primitives if the processor multiplies bf16 (AMX, or
// AVX512-BF16: twice the speed of f32 on an AMD Zen 4); without that, and for f16 and mixed dtypes,
// tiles are converted to f32.
class MatmulRunner {
 public:
  explicit MatmulRunner(int num_threads);
  ~MatmulRunner();

  // Not thread-safe. Ignores the other fields of op::Matmul. REQUIRES: args.Check() has passed;
  // M and N are not 0.
  void Run(const op::Matmul& args);

  // Whether the processor multiplies bf16.
  bool bf16_native() const;
  // REQUIRES: bf16_native(). Runs on the calling thread alone, which is number `thread` of the
  // threads that call at the same time. Fastest where a and b are dense (lda, ldb as small as can
  // be).
  void GemmOnThisThread(const GemmArgs<uint16_t>& args, int thread);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat::engine
