// What a linear layer needs: products, and with that of its weight the gradient of its bias.
#include <algorithm>

#include "engine/backend/cost.h"
#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

constexpr int64_t kColumns = 256;  // Columns of one piece of work: a sum per column, in L1.
constexpr int64_t kRows = 64;      // Rows added up before they join the sum, for accuracy.

// db[col] += the sum of dy[:, col] for `num_cols` <= kColumns columns.
template <typename T>
void AddColumnSums(T* db, const T* dy, int64_t M, int64_t N, int64_t num_cols) {
  float sums[kColumns] = {};
  for (int64_t row = 0; row < M; row += kRows) {
    float part[kColumns] = {};
    for (int64_t r = row; r < std::min(M, row + kRows); ++r) {
      const T* in = dy + r * N;
      for (int64_t c = 0; c < num_cols; ++c)
        part[c] += ToFloat(in[c]);
    }
    for (int64_t c = 0; c < num_cols; ++c)
      sums[c] += part[c];
  }
  for (int64_t c = 0; c < num_cols; ++c)
    db[c] = FromFloat<T>(ToFloat(db[c]) + sums[c]);
}

}  // namespace

void CpuKernels::Matmul(const MatmulArgs& args) {
  args.Check();
  flops_ += MatmulFlops(args);
  if (args.M == 0 || args.N == 0) return;
  matmul_.Run(args);
  if (args.column_sums.num_elems == 0) return;
  VisitDType(args.b.dtype, [&](auto type) {
    using T = decltype(type);
    T* sums = Data<T>(args.column_sums);
    const T* b = Data<T>(args.b);
    ParallelFor(num_threads_, (args.N + kColumns - 1) / kColumns, args.K * args.N,
                [=, K = args.K, N = args.N](int64_t piece) {
                  const int64_t col = piece * kColumns;
                  AddColumnSums(sums + col, b + col, K, N, std::min(kColumns, N - col));
                });
  });
}

}  // namespace dsat::engine
