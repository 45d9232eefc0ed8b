// Causal attention on tensor cores in the shape of FlashAttention-2 (Dao 2023), backward: one
// kernel for the gradients of queries, one for those of keys and values, so that every sum has one
// owner and a fixed order. That is seven products where atomic sums would leave five.
//
// Both have rows (queries, or keys) that stay and columns (keys, or queries) that pass by in tiles,
// the next tile being copied while the present one is multiplied. A warp's sums, scores and
// gradients of scores take 192 registers a lane: with 64 channels for two row tiles, with 128 for
// two of the queries but one of the keys, whose sums are two. Reading shared memory bounds the
// latter (attention_tensor_forward.cu); they have eight warps a block instead of four, so that one
// tile of queries serves 128 keys all the same, and half as large tiles where a block has less
// shared memory.
#include "engine/backend/cuda/attention_tile.h"
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

// Sizes of a block.
template <int kD_, int kWarps, int kTiles_, int kColumns_>
struct Sizes {
  static constexpr int kD = kD_, kTiles = kTiles_, kColumns = kColumns_, kSteps = kColumns / 8;
  static constexpr int kBlockThreads = kWarps * kWarp, kRows = kWarps * 16 * kTiles;
  static constexpr int kTileBytes = kColumns * kD * 2, kRowBytes = kRows * kD * 2;
  static constexpr int kBlocksAtOnce = kWarps == 4 ? 2 : 1;  // As registers allow.

  using Scores = float[kTiles][kSteps][4];
  using Sums = float[kTiles][kD / 8][4];
  // The first row of the calling warp.
  static __device__ int FirstRow() { return static_cast<int>(threadIdx.x) / kWarp * 16 * kTiles; }
};
template <int kD>
using QueryGradSizes = Sizes<kD, 4, 2, kD == 64 ? 64 : 32>;
template <int kD>
using KeyGradSizes = std::conditional_t<kD == 64, Sizes<kD, 4, 2, 32>, Sizes<kD, 8, 1, 32>>;
template <int kD>
using LargeKeyGradSizes = std::conditional_t<kD == 64, KeyGradSizes<kD>, Sizes<kD, 8, 1, 64>>;

// A score's probability p and the gradient ds of the score before it was scaled; in: score, and the
// gradient of p.
struct ScoreGrad {
  float factor;  // From scores to powers of 2.

  __device__ void operator()(float& score, float& grad, float lse, float delta) const {
    const float p = Exp2(score * factor - lse * kLog2E);
    score = p;
    grad = p * (grad - delta);
  }
};

template <typename Elem, int kD>
struct Operands {
  Elem* dqkv;
  const Elem *qkv, *out, *dout;
  const float* lse;
  float* delta;
  Heads heads;

  __device__ int T() const { return static_cast<int>(heads.T); }
  __device__ HeadRows<const Elem> InQkv(int64_t offset) const { return In(qkv + offset); }
  __device__ HeadRows<Elem> InGrads(int64_t offset) const { return In(dqkv + offset); }
  // delta of rows [row, row + num_rows), the dot products of out and dout, by the calling warp,
  // which may read it at once: four rows at a time, by eight lanes each.
  __device__ void GiveDelta(int64_t b, int64_t h, int row, int num_rows) const {
    for (int i = 0; i < num_rows; i += kWarp / kChunk) {
      const int t = row + i + Lane() / kChunk;
      const int64_t at = heads.Out(b, h) + t * heads.C;
      float sum = 0.0F;
      for (int64_t c = Lane() % kChunk * kChunk; t < T() && c < heads.hd; c += kChunk * kChunk) {
        const Octet x = LoadWords(out + at + c), grad = LoadWords(dout + at + c);
        for (int j = 0; j < kChunk; ++j)
          sum += x[j] * grad[j];
      }
      for (int offset = kChunk / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(kAllLanes, sum, offset);
      if (t < T() && Lane() % kChunk == 0) delta[heads.Stat(b, h) + t] = sum;
    }
    __syncwarp();
  }
  __device__ HeadRows<const Elem> InDout(int64_t b, int64_t h) const {
    return {dout + heads.Out(b, h), heads.C, T(), static_cast<int>(heads.hd)};
  }

 private:
  template <typename E>
  __device__ HeadRows<E> In(E* data) const {
    return {data, heads.qkv_stride, T(), static_cast<int>(heads.hd)};
  }
};

// As the forward kernel: tile gridDim.z - 1 - blockIdx.z of head blockIdx.x of sequence blockIdx.y.
template <typename Elem, int kD, typename S = QueryGradSizes<kD>>
__global__ void __launch_bounds__(S::kBlockThreads, S::kBlocksAtOnce)
    QueryGradKernel(Operands<Elem, kD> in) {
  DSAT_DYNAMIC_SHARED(SharedLine, shared);
  const SharedAddress q = AddressOf(shared), dout = q + S::kRowBytes;
  const SharedAddress stages = dout + S::kRowBytes;  // Keys, then values, twice.
  const Heads& heads = in.heads;
  const int64_t h = blockIdx.x, b = blockIdx.y, g = heads.KvHead(h);
  const int T = in.T(), begin = static_cast<int>(gridDim.z - 1 - blockIdx.z) * S::kRows;
  const int first = S::FirstRow(), row = begin + first;
  const auto begin_stage = [&](int tile) {
    const SharedAddress stage = stages + tile % 2 * 2 * S::kTileBytes;
    BeginTile<kD, S::kColumns, S::kBlockThreads>(stage, in.InQkv(heads.K(b, g)),
                                                 tile * S::kColumns);
    BeginTile<kD, S::kColumns, S::kBlockThreads>(stage + S::kTileBytes, in.InQkv(heads.V(b, g)),
                                                 tile * S::kColumns);
  };
  BeginTile<kD, S::kRows, S::kBlockThreads>(q, in.InQkv(heads.Q(b, h)), begin);
  BeginTile<kD, S::kRows, S::kBlockThreads>(dout, in.InDout(b, h), begin);
  begin_stage(0);
  in.GiveDelta(b, h, row, 16 * S::kTiles);  // The next kernel reads it, too.
  float lse[S::kTiles][2], delta[S::kTiles][2], scales[S::kTiles][2];
#pragma unroll
  for (int i = 0; i < 2 * S::kTiles; ++i) {
    const int t = row + RowOf(i / 2, i % 2 * 2);
    lse[i / 2][i % 2] = t < T ? in.lse[heads.Stat(b, h) + t] : 0.0F;
    delta[i / 2][i % 2] = t < T ? in.delta[heads.Stat(b, h) + t] : 0.0F;
    scales[i / 2][i % 2] = heads.scale;
  }
  const SharedRows<Elem, kD, S::kTiles> q_rows(q, first), dout_rows(dout, first);
  const ScoreGrad score_grad{heads.scale * kLog2E};
  typename S::Sums dq = {};
  const int end = begin + S::kRows < T ? begin + S::kRows : T;
  for (int tile = 0; tile * S::kColumns < end; ++tile) {
    FinishCopies();
    __syncthreads();
    if ((tile + 1) * S::kColumns < end) begin_stage(tile + 1);
    const SharedAddress k = stages + tile % 2 * 2 * S::kTileBytes, v = k + S::kTileBytes;
    const int column = tile * S::kColumns;
    if (column > row + 16 * S::kTiles - 1) continue;  // After all queries of the warp.
    typename S::Scores p, ds;
    MultiplyByRows<Elem, kD>(p, q_rows, k);
    MultiplyByRows<Elem, kD>(ds, dout_rows, v);
    if (column + S::kColumns - 1 > row) Mask</*kRowsAreKeys=*/false>(p, row, column);
#pragma unroll
    for (int i = 0; i < S::kTiles * S::kSteps * 4; ++i) {
      const int m = i / (S::kSteps * 4), n = i / 4 % S::kSteps, e = i % 4;
      score_grad(p[m][n][e], ds[m][n][e], lse[m][e / 2], delta[m][e / 2]);
    }
    AddWeightedRows<Elem, kD>(dq, ds, k);
  }
  StoreRows<kD>(in.InGrads(heads.Q(b, h)), begin, reinterpret_cast<char*>(shared), first, dq,
                scales);
}

// A tile of queries in shared memory: q, dout, lse, delta.
template <typename S>
struct QueryStage {
  static constexpr int kStatBytes = S::kColumns * static_cast<int>(sizeof(float));
  // Stages begin at multiples of a SharedLine.
  static constexpr int kBytes = 2 * S::kTileBytes + (2 * kStatBytes + 255) / 256 * 256;
};

// Tile blockIdx.z of head blockIdx.x (of keys) of sequence blockIdx.y; the heads of queries that it
// serves come one after another.
template <typename Elem, int kD, typename S>
__global__ void __launch_bounds__(S::kBlockThreads, S::kBlocksAtOnce)
    KeyGradKernel(Operands<Elem, kD> in) {
  using Stage = QueryStage<S>;
  constexpr int kStages = 2 * S::kRowBytes;  // Where they begin.
  DSAT_DYNAMIC_SHARED(SharedLine, shared);
  const SharedAddress k = AddressOf(shared), v = k + S::kRowBytes;
  const Heads& heads = in.heads;
  const int64_t g = blockIdx.x, b = blockIdx.y;
  const int T = in.T(), begin = static_cast<int>(blockIdx.z) * S::kRows;
  const int first = S::FirstRow(), row = begin + first;
  // Queries before the first key see none of them.
  const int tiles_per_head = (T - begin + S::kColumns - 1) / S::kColumns;
  const int num_tiles = static_cast<int>(heads.H / heads.G) * tiles_per_head;
  const auto begin_stage = [&](int tile) {
    const int64_t h = g * (heads.H / heads.G) + tile / tiles_per_head;
    const int column = begin + tile % tiles_per_head * S::kColumns;
    const SharedAddress stage = k + kStages + tile % 2 * Stage::kBytes;
    BeginTile<kD, S::kColumns, S::kBlockThreads>(stage, in.InQkv(heads.Q(b, h)), column);
    BeginTile<kD, S::kColumns, S::kBlockThreads>(stage + S::kTileBytes, in.InDout(b, h), column);
    const int i = static_cast<int>(threadIdx.x), t = column + i % S::kColumns;
    if (i < 2 * S::kColumns) {
      const float* from = (i < S::kColumns ? in.lse : in.delta) + heads.Stat(b, h) + t;
      BeginCopy<4>(stage + 2 * S::kTileBytes + i * 4, from, t < T);
    }
  };
  BeginTile<kD, S::kRows, S::kBlockThreads>(k, in.InQkv(heads.K(b, g)), begin);
  BeginTile<kD, S::kRows, S::kBlockThreads>(v, in.InQkv(heads.V(b, g)), begin);
  begin_stage(0);
  const SharedRows<Elem, kD, S::kTiles> k_rows(k, first), v_rows(v, first);
  const ScoreGrad score_grad{heads.scale * kLog2E};
  typename S::Sums dk = {}, dv = {};
  for (int tile = 0; tile < num_tiles; ++tile) {
    FinishCopies();
    __syncthreads();
    if (tile + 1 < num_tiles) begin_stage(tile + 1);
    const SharedAddress q = k + kStages + tile % 2 * Stage::kBytes, dout = q + S::kTileBytes;
    const auto* stats =
        reinterpret_cast<const float*>(reinterpret_cast<const char*>(shared) + kStages +
                                       tile % 2 * Stage::kBytes + 2 * S::kTileBytes);
    const int column = begin + tile % tiles_per_head * S::kColumns;
    if (row > column + S::kColumns - 1) continue;  // All keys of the warp are after the queries.
    typename S::Scores p, ds;
    MultiplyByRows<Elem, kD>(p, k_rows, q);
    MultiplyByRows<Elem, kD>(ds, v_rows, dout);
    if (row + 16 * S::kTiles - 1 > column) Mask</*kRowsAreKeys=*/true>(p, row, column);
#pragma unroll
    for (int i = 0; i < S::kTiles * S::kSteps * 4; ++i) {
      const int m = i / 4 % S::kTiles, n = i / 4 / S::kTiles, e = i % 4;
      const float* stat = stats + ColumnOf(n, e);
      score_grad(p[m][n][e], ds[m][n][e], stat[0], stat[S::kColumns]);
    }
    AddWeightedRows<Elem, kD>(dv, p, dout);
    AddWeightedRows<Elem, kD>(dk, ds, q);
  }
  float scales[S::kTiles][2], ones[S::kTiles][2];
#pragma unroll
  for (int i = 0; i < 2 * S::kTiles; ++i) {
    scales[i / 2][i % 2] = heads.scale;
    ones[i / 2][i % 2] = 1.0F;
  }
  auto* tiles = reinterpret_cast<char*>(shared);
  StoreRows<kD>(in.InGrads(heads.K(b, g)), begin, tiles, first, dk, scales);
  StoreRows<kD>(in.InGrads(heads.V(b, g)), begin, tiles + S::kRowBytes, first, dv, ones);
}

template <typename S>
dim3 Grid(const AttentionShape& s, int64_t num_heads) {
  return dim3(static_cast<unsigned>(num_heads), static_cast<unsigned>(s.B),
              static_cast<unsigned>((s.T + S::kRows - 1) / S::kRows));
}

template <typename S>
constexpr int kKeyGradBytes = 2 * S::kRowBytes + 2 * QueryStage<S>::kBytes;

template <typename Elem, int kD, typename S>
void RunKeyGrad(const AttentionShape& shape, const Operands<Elem, kD>& operands) {
  const auto kernel = KeyGradKernel<Elem, kD, S>;
  Launch(kernel,
         {Grid<S>(shape, shape.KvHeads()), S::kBlockThreads, AllowShared(kernel, kKeyGradBytes<S>)},
         operands);
}

template <typename Elem, int kD>
void Run(const op::AttentionBackward& op) {
  const Operands<Elem, kD> operands{
      Data<Elem>(op.dqkv), Data<Elem>(op.qkv),      Data<Elem>(op.out), Data<Elem>(op.dout),
      Data<float>(op.lse), Data<float>(op.scratch), HeadsOf(op.shape)};
  using Q = QueryGradSizes<kD>;
  Launch(QueryGradKernel<Elem, kD>,
         {Grid<Q>(op.shape, op.shape.H), Q::kBlockThreads,
          AllowShared(QueryGradKernel<Elem, kD>, 2 * Q::kRowBytes + 4 * Q::kTileBytes)},
         operands);
  using Small = KeyGradSizes<kD>;
  using Large = LargeKeyGradSizes<kD>;
  constexpr int kLeastShared = 99 << 10;  // Every supported GPU has so much.
  static_assert(2 * Q::kRowBytes + 4 * Q::kTileBytes <= kLeastShared);
  static_assert(kKeyGradBytes<Small> <= kLeastShared);
  if (kKeyGradBytes<Large> <= MostSharedBytes())
    RunKeyGrad<Elem, kD, Large>(op.shape, operands);
  else
    RunKeyGrad<Elem, kD, Small>(op.shape, operands);
}

}  // namespace

void TensorAttentionBackward(const op::AttentionBackward& op) {
  Visit(op.qkv.dtype, [&]<typename Elem>(Elem) {
    if constexpr (kIsTensorType<Elem>) {
      op.shape.HeadChannels() <= 64 ? Run<Elem, 64>(op) : Run<Elem, 128>(op);
    }
  });
}

}  // namespace dsat::engine::cuda
