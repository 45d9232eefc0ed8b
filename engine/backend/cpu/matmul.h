// Matrix multiplications on CPU: sgemm for f32, oneDNN primitives for bf16.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/backend/cpu/onednn.h"
#include "engine/backend/layer_ops.h"

namespace dsat::engine {

// A row-major matrix that may be a part of a wider one.
template <typename Elem>
struct Strided {
  Elem* data = nullptr;
  int64_t stride = 0;  // From row to row, in elements.

  Elem* row(int64_t i) const { return data + i * stride; }
  // The rows from i on.
  Strided From(int64_t i) const { return {row(i), stride}; }
};

// c (M, N) = op(a) (M, K) * op(b) (K, N) [+ c]. Elem is float or Bf16 (engine/backend/cpu/vec.h).
template <typename Elem>
struct GemmArgs {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // c += instead of c =
  int64_t M = 0, N = 0, K = 0;
  Strided<const Elem> a = {}, b = {};
  Strided<float> c = {};
};

// Runs on the calling thread alone, also outside of parallel regions.
void SgemmOnThisThread(const GemmArgs<float>& args);

// One tile of c: rows [row, row + rows), columns [col, col + cols).
struct MatmulTile {
  int64_t row = 0, rows = 0, col = 0, cols = 0;
};

// Matrix multiplications of any dtypes with a bias and an addend, which initialize each tile of c.
//
// The shape alone determines how c is divided into tiles, and each tile is one oneDNN call on one
// thread. oneDNN itself would split K by the number of threads, and the sums would depend on it.
// f32 uses sgemm. bf16 uses matmul primitives if the processor multiplies bf16 (AMX, or
// AVX512-BF16: twice the speed of f32 on an AMD Zen 4); without that, and for f16 and mixed dtypes,
// tiles are converted to f32.
class MatmulRunner : private OneDnnThreads {
 public:
  using OneDnnThreads::OneDnnThreads;

  // Not thread-safe. Ignores the other fields of op::Matmul. REQUIRES: args.Check() has passed;
  // M and N are not 0.
  void Run(const op::Matmul& args);

  // Whether the processor multiplies bf16.
  bool bf16_native() const { return bf16_native_; }
  // REQUIRES: bf16_native(). Runs on the calling thread alone, which is number `thread` of the
  // threads that call at the same time. Fastest where a and b are dense (strides as small as can
  // be).
  void GemmOnThisThread(const GemmArgs<uint16_t>& args, int thread);

 private:
  // The properties that a primitive depends on.
  struct Shape {
    int64_t M = 0, N = 0, K = 0, lda = 0, ldb = 0, ldc = 0;
    bool transpose_a = false, transpose_b = false, accumulate = false;
    DType c = DType::kF32;
    std::optional<DType> bias = std::nullopt;
    auto operator<=>(const Shape&) const = default;
  };
  struct Primitive {
    int64_t scratch_bytes = 0;
    dnnl::matmul matmul;
    // One per thread; only where the data are differs from run to run.
    std::vector<std::unordered_map<int, dnnl::memory>> args;
  };
  struct Operands {
    const void* a;
    const void* b;
    const void* bias;
    void* c;
  };

  void RunPrimitive(const Shape& shape, const Operands& operands, int thread);
  Primitive& FindPrimitive(const Shape& shape);
  Primitive MakePrimitive(const Shape& shape) const;
  void RunBf16Tile(const op::Matmul& args, const MatmulTile& tile, int thread);
  void RunConvertedTile(const op::Matmul& args, const MatmulTile& tile, int thread);
  // Calls fn(tile, thread) for every tile of c.
  template <typename Fn>
  void ForEachTile(const op::Matmul& args, const Fn& fn);

  std::mutex mutex_;
  // Making a primitive generates code (milliseconds). Guarded by mutex_.
  std::map<Shape, Primitive> primitives_;
};

}  // namespace dsat::engine
