// What a linear layer needs: products and the gradient of its bias.
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
template <typename DB, typename DY>
void AddColumnSums(DB* db, const DY* dy, int64_t M, int64_t N, int64_t num_cols) {
  float sums[kColumns] = {};
  for (int64_t row = 0; row < M; row += kRows) {
    float part[kColumns] = {};
    for (int64_t r = row; r < std::min(M, row + kRows); ++r) {
      const DY* in = dy + r * N;
      for (int64_t c = 0; c < num_cols; ++c)
        part[c] += ToFloat(in[c]);
    }
    for (int64_t c = 0; c < num_cols; ++c)
      sums[c] += part[c];
  }
  for (int64_t c = 0; c < num_cols; ++c)
    db[c] = FromFloat<DB>(ToFloat(db[c]) + sums[c]);
}

}  // namespace

void CpuKernels::Matmul(const MatmulArgs& args) {
  flops_ += MatmulFlops(args);
  matmul_.Run(args);
}

void CpuKernels::BiasGrad(Tensor db, Tensor dy, int64_t M, int64_t N) {
  DSAT_CHECK(db.num_elems >= N && dy.num_elems >= M * N, "{} x {}: {} and {} elements", M, N,
             db.num_elems, dy.num_elems);
  VisitDType(db.dtype, [&](auto db_type) {
    VisitDType(dy.dtype, [&](auto dy_type) {
      auto* out = Data<decltype(db_type)>(db);
      const auto* in = Data<decltype(dy_type)>(dy);
      ParallelFor(num_threads_, (N + kColumns - 1) / kColumns, M * N, [=](int64_t piece) {
        const int64_t col = piece * kColumns;
        AddColumnSums(out + col, in + col, M, N, std::min(kColumns, N - col));
      });
    });
  });
}

}  // namespace dsat::engine
