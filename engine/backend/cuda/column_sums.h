// Sums over the rows of a matrix, column by column: gradients of biases and of norms' weights.
#pragma once

#include "engine/backend/cuda/device_math.h"

namespace dsat::engine::cuda {

constexpr int kColumnLanes = 32;  // Columns that a block sums, and rows that it reads at once.
constexpr int kRowLanes = 8;
constexpr int64_t kMaxRowParts = 64;

// The number of parts into which N rows are divided. Each block sums one part.
inline int64_t NumRowParts(int64_t N) {
  constexpr int64_t kMinRows = 64;
  return std::max<int64_t>(1, std::min(kMaxRowParts, (N + kMinRows - 1) / kMinRows));
}

// The sum of term(row), a float2, over rows [begin, end), for the column of each threadIdx.x of a
// block (kColumnLanes, kRowLanes). Threads of the first row return it.
template <typename Term>
__device__ float2 SumRows(int64_t begin, int64_t end, const Term& term) {
  __shared__ float2 sums[kRowLanes][kColumnLanes];
  float2 sum = {0.0F, 0.0F};
  for (int64_t row = begin + threadIdx.y; row < end; row += kRowLanes) {
    const float2 x = term(row);
    sum.x += x.x;
    sum.y += x.y;
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  for (int i = 1; threadIdx.y == 0 && i < kRowLanes; ++i) {
    sum.x += sums[i][threadIdx.x].x;
    sum.y += sums[i][threadIdx.x].y;
  }
  return sum;
}
__device__ inline int64_t BlockColumn() {
  return int64_t{blockIdx.x} * kColumnLanes + threadIdx.x;
}
inline unsigned ColumnBlocks(int64_t C) {
  return static_cast<unsigned>((C + kColumnLanes - 1) / kColumnLanes);
}

// partial (parts, C, 2) = the sums of term(row, c), a float2, over a part's rows.
template <typename Term>
__global__ void PartialColumnSums(float2* partial, int64_t N, int64_t C, Term term) {
  const int64_t c = BlockColumn();
  const int64_t part_rows = (N + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * part_rows;
  const int64_t end = c < C ? min(N, begin + part_rows) : begin;
  const float2 sum = SumRows(begin, end, [&](int64_t row) { return term(row, c); });
  if (threadIdx.y == 0 && c < C) partial[blockIdx.y * C + c] = sum;
}

// first (C) += the sums' x, second (C) += their y; either may be nullptr.
template <typename T>
__global__ void AddColumnSums(T* first, T* second, const float2* partial, int64_t parts,
                              int64_t C) {
  const int64_t c = BlockColumn();
  const float2 sum =
      SumRows(0, c < C ? parts : 0, [&](int64_t part) { return partial[part * C + c]; });
  if (threadIdx.y != 0 || c >= C) return;
  if (first != nullptr) first[c] = FromFloat<T>(ToFloat(first[c]) + sum.x);
  if (second != nullptr) second[c] = FromFloat<T>(ToFloat(second[c]) + sum.y);
}

// Empty tensors are not computed.
template <typename T>
void AddPartialSums(const Tensor& first, const Tensor& second, const float2* partial, int64_t parts,
                    int64_t C) {
  Launch(AddColumnSums<T>, {ColumnBlocks(C), dim3(kColumnLanes, kRowLanes)},
         first.num_elems == 0 ? nullptr : Data<T>(first),
         second.num_elems == 0 ? nullptr : Data<T>(second), partial, parts, C);
}

// Launches both kernels. Empty tensors are not computed.
template <typename T, typename Term>
void SumColumns(const Tensor& first, const Tensor& second, int64_t N, int64_t C, const Term& term,
                CudaWorkspace& workspace) {
  if (N == 0 || C == 0 || (first.num_elems == 0 && second.num_elems == 0)) return;
  const int64_t parts = NumRowParts(N);
  auto* partial = static_cast<float2*>(workspace.Get(parts * C * int64_t{sizeof(float2)}));
  const dim3 grid(ColumnBlocks(C), static_cast<unsigned>(parts));
  Launch(PartialColumnSums<Term>, {grid, dim3(kColumnLanes, kRowLanes)}, partial, N, C, term);
  AddPartialSums<T>(first, second, partial, parts, C);
}

}  // namespace dsat::engine::cuda
