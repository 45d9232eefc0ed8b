// Tiles of attention in shared memory, and a warp's two kinds of product with them.
//
// A warp owns kTiles * 16 rows of a tile of queries or keys, and multiplies them with a tile of
// kSteps * 8 columns (keys or queries) at a time. The layout of a product is that of tensor cores:
// x[m][n][e] of a lane is row 16 m + lane / 4 + 8 (e / 2), column 8 n + 2 (lane % 4) + e % 2.
#pragma once

#include "engine/backend/cuda/attention.h"
#include "engine/backend/cuda/tensor_core.h"

namespace dsat::engine::cuda {

constexpr int kChunk = 8;  // Elements in 16 bytes.
// A block's shared memory consists of these, so that tiles begin at multiples of their row size.
struct alignas(256) SharedLine {
  uint4 chunks[16];
};

__device__ inline int Lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ inline int RowOf(int m, int e) {
  return 16 * m + Lane() / 4 + e / 2 * 8;
}
__device__ inline int ColumnOf(int n, int e) {
  return 8 * n + Lane() % 4 * 2 + e % 2;
}

// Where chunk `chunk` of row `row` is in a tile of kD channels, in bytes. The eight rows of one
// chunk that ldmatrix reads together lie 2 kD bytes apart, a multiple of all 32 banks: exchanging
// chunks by the row's last three bits spreads them over all banks, and leaves a row where it is.
template <int kD>
__device__ SharedAddress At(int row, int chunk) {
  return static_cast<SharedAddress>(row * 2 * kD + (chunk ^ (row % 8)) * 16);
}

// (T, hd) of one head in global memory.
template <typename Elem>
struct HeadRows {
  Elem* data;
  int64_t stride;
  int T, hd;
};

// Begins to copy rows [begin, begin + kRows) by a block of kThreads; zeros from T and from hd on.
template <int kD, int kRows, int kThreads, typename Elem>
__device__ void BeginTile(SharedAddress tile, const HeadRows<const Elem>& from, int begin) {
  constexpr int kChunks = kD / kChunk, kRowsAtOnce = kThreads / kChunks;
  static_assert(kThreads % (8 * kChunks) == 0 && kRows % kRowsAtOnce == 0);
  const int row = static_cast<int>(threadIdx.x) / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const SharedAddress to = tile + At<kD>(row, chunk);
  const Elem* source = from.data + (begin + row) * from.stride + chunk * kChunk;
  // Rows that the thread may copy.
  const int limit = chunk * kChunk < from.hd ? from.T - begin - row : 0;
#pragma unroll
  for (int i = 0; i < kRows; i += kRowsAtOnce)
    BeginCopy<16>(to + i * 2 * kD, source + i * from.stride, i < limit);
}

// A warp's rows as left operands, 16 channels per step, read at each use. Steps and tiles are
// constants added to one address (by xor within a row), which saves registers.
template <typename Elem, int kD, int kTiles>
struct SharedRows {
  SharedAddress first;

  // Rows [first_row, first_row + 16 kTiles) of `tile`.
  __device__ SharedRows(SharedAddress tile, int first_row)
      : first(tile + At<kD>(first_row + Lane() % 16, Lane() / 16)) {}
  __device__ LeftOperand operator()(int m, int step) const {
    LeftOperand left;
    LoadMatrices(left.words, (first ^ (32 * step)) + 16 * m * 2 * kD);
    return left;
  }
};
// The same, kept in registers.
template <typename Elem, int kD, int kTiles>
struct KeptRows {
  LeftOperand rows[kTiles][kD / 16];

  __device__ KeptRows(SharedAddress tile, int first_row) {
    const SharedRows<Elem, kD, kTiles> shared(tile, first_row);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int step = 0; step < kD / 16; ++step)
        rows[m][step] = shared(m, step);
    }
  }
  __device__ LeftOperand operator()(int m, int step) const {
    return rows[m][step];
  }
};

// product = rows * tile^T over kD channels: rows of the tile are columns of the product.
template <typename Elem, int kD, int kTiles, int kSteps, typename Rows>
__device__ void MultiplyByRows(float (&product)[kTiles][kSteps][4], const Rows& rows,
                               SharedAddress tile) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        product[m][n][e] = 0.0F;
    }
  }
  // Matrices of a load: first and second 8 channels of 8 columns, then of the next 8.
  const SharedAddress first = tile + At<kD>(Lane() % 8 + Lane() / 16 * 8, Lane() / 8 % 2);
#pragma unroll
  for (int step = 0; step < kD / 16; ++step) {
    LeftOperand left[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
      left[m] = rows(m, step);
#pragma unroll
    for (int n = 0; n < kSteps; n += 2) {
      uint32_t right[4];
      LoadMatrices(right, (first ^ (32 * step)) + 8 * n * 2 * kD);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        MultiplyAdd<Elem>(product[m][n], left[m], right[0], right[1]);
        MultiplyAdd<Elem>(product[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// sums += weights * tile. The layout of a product is also that of a left operand, so that each lane
// only rounds the weights that it holds (Dao et al. 2022).
template <typename Elem, int kD, int kTiles, int kSteps>
__device__ void AddWeightedRows(float (&sums)[kTiles][kD / 8][4],
                                const float (&weights)[kTiles][kSteps][4], SharedAddress tile) {
  const SharedAddress first = tile + At<kD>(Lane() % 16, Lane() / 16);
#pragma unroll
  for (int step = 0; step < kSteps; step += 2) {
    LeftOperand left[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = weights[m][step + i / 2] + i % 2 * 2;
        left[m].words[i] = Pack<Elem>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kD / 8; n += 2) {
      uint32_t right[4];
      LoadTransposed(right, (first ^ (16 * n)) + 8 * step * 2 * kD);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        MultiplyAdd<Elem>(sums[m][n], left[m], right[0], right[1]);
        MultiplyAdd<Elem>(sums[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// Sets the scores of keys that a query does not see to -inf. Rows are queries, or keys if
// kRowsAreKeys. The first row and the first column are given.
template <bool kRowsAreKeys, int kTiles, int kSteps>
__device__ void Mask(float (&scores)[kTiles][kSteps][4], int first_row, int first_column) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + RowOf(m, e), column = first_column + ColumnOf(n, e);
        if (kRowsAreKeys ? row > column : column > row) scores[m][n][e] = -INFINITY;
      }
    }
  }
}

// The warp's rows of `to` = the sums, times a factor per row. They are staged in its rows [first,
// ...) of `tile`, which no other warp reads, so that global writes are 16 bytes wide.
template <int kD, int kTiles, typename Elem>
__device__ void StoreRows(const HeadRows<Elem>& to, int begin, char* tile, int first,
                          const float (&sums)[kTiles][kD / 8][4],
                          const float (&factors)[kTiles][2]) {
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const float factor = factors[m][e / 2];
        char* at = tile + At<kD>(first + RowOf(m, e), n) + Lane() % 4 * 4;
        *reinterpret_cast<uint32_t*>(at) =
            Pack<Elem>(sums[m][n][e] * factor, sums[m][n][e + 1] * factor);
      }
    }
  }
  __syncwarp();
  constexpr int kChunks = kD / kChunk;
  for (int i = Lane(); i < 16 * kTiles * kChunks; i += kWarp) {
    const int row = first + i / kChunks, chunk = i % kChunks;
    if (begin + row >= to.T || chunk * kChunk >= to.hd) continue;
    *reinterpret_cast<uint4*>(to.data + (begin + row) * to.stride + chunk * kChunk) =
        *reinterpret_cast<const uint4*>(tile + At<kD>(row, chunk));
  }
}

}  // namespace dsat::engine::cuda
