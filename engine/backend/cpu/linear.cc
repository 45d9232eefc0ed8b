// The kernels of a linear layer: products, and with that of its weight the gradient of its bias.
#include <algorithm>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/matmul.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

constexpr int64_t kColumns = 256;  // Columns of one piece of work: a sum per column, in L1.
constexpr int64_t kRows = 64;      // Rows added up before they join the sum, for accuracy.

// out[col] += the sum of x[:, col] for `num_cols` <= kColumns columns.
template <typename T>
void AddPieceSums(T* out, const T* x, int64_t M, int64_t N, int64_t num_cols) {
  float sums[kColumns] = {};
  for (int64_t row = 0; row < M; row += kRows) {
    float part[kColumns] = {};
    for (int64_t r = row; r < std::min(M, row + kRows); ++r) {
      const T* in = x + r * N;
      for (int64_t c = 0; c < num_cols; ++c)
        part[c] += ToFloat(in[c]);
    }
    for (int64_t c = 0; c < num_cols; ++c)
      sums[c] += part[c];
  }
  for (int64_t c = 0; c < num_cols; ++c)
    out[c] = FromFloat<T>(ToFloat(out[c]) + sums[c]);
}

// sums (N) += the sums of the columns of x (M, N), of one dtype.
void AddColumnSums(int num_threads, const Tensor& sums, const Tensor& x, int64_t M, int64_t N) {
  VisitDType(x.dtype, [&]<typename T>(T) {
    T* out = Data<T>(sums);
    const T* in = Data<T>(x);
    ParallelFor(num_threads, (N + kColumns - 1) / kColumns, M * N, [=](int64_t piece) {
      const int64_t col = piece * kColumns;
      AddPieceSums(out + col, in + col, M, N, std::min(kColumns, N - col));
    });
  });
}

}  // namespace

// A tile goes to memory before GELU: it is no faster in the tile, whose rows are short.
void CpuKernels::Run(const op::Matmul& args) {
  const Tensor c = args.c.Slice(0, args.M * args.N);
  op::Matmul product = args;
  if (args.before_gelu.num_elems > 0) product.c = args.before_gelu.Slice(0, c.num_elems);
  matmul_->Run(product);
  if (args.before_gelu.num_elems > 0) Run(op::GeluForward{c, product.c});
  if (args.gelu_input.num_elems > 0)
    Run(op::GeluBackward{c, c, args.gelu_input.Slice(0, c.num_elems)});
  if (args.column_sums.num_elems > 0)
    AddColumnSums(num_threads_, args.column_sums, args.b, args.K, args.N);
}

}  // namespace dsat::engine
