// Causal attention without stored scores (Dao et al. 2022): which kernels compute it, and those for
// what tensor cores do not take, in any type and head size. Tiles of 32 queries and 32 keys are in
// shared memory, arithmetic is f32. A warp works on one row at a time, a lane on one column of the
// tile, then on every 32nd channel.
//
// The backward pass computes probabilities again from lse. Rows of queries (dq) and rows of keys
// (dk, dv) have a kernel each, so that every sum has one owner and a fixed order.
#include "engine/backend/cost.h"
#include "engine/backend/cuda/attention.h"
#include "engine/core/device_kind.h"

namespace dsat::engine::cuda {
namespace {

constexpr int kTile = kWarp;  // Rows, and columns, of a tile of scores.
constexpr int kWarps = 4;
constexpr int kRowsPerWarp = kTile / kWarps;
constexpr int kMaxSlots = kMaxCudaHeadChannels / kWarp;  // Channels of a lane.
constexpr int kTilesOfGrad = 4;                          // In shared memory, of both kernels.

// A tile (kTile, hd) in shared memory, a row longer by one so that lanes on different rows read
// different banks.
struct Tile {
  float* data;
  int64_t hd;

  __device__ float* row(int64_t i) const { return data + i * (hd + 1); }
};
int64_t TileBytes(int64_t hd) {
  return kTile * (hd + 1) * static_cast<int64_t>(sizeof(float));
}
__device__ Tile TileAt(float* shared, int i, int64_t hd) {
  return {shared + i * kTile * (hd + 1), hd};
}

// Rows of a tile from `begin` that are before T.
__device__ int NumRows(int64_t begin, int64_t T) {
  return static_cast<int>(min(T - begin, int64_t{kTile}));
}

// Rows [begin, begin + kTile) of a head; 0 from T on.
template <typename Elem>
__device__ void Load(const Tile& tile, const Elem* from, int64_t stride, int64_t begin, int64_t T) {
  for (int64_t i = threadIdx.x; i < kTile * tile.hd; i += kWarps * kWarp) {
    const int64_t row = begin + i / tile.hd;
    const float x = row < T ? ToFloat(from[row * stride + i % tile.hd]) : 0.0F;
    tile.row(i / tile.hd)[i % tile.hd] = x;
  }
}

__device__ float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0.0F;
  for (int64_t c = 0; c < n; ++c)
    sum += a[c] * b[c];
  return sum;
}

// sums[slot] += the sum over the tile's first rows j of weight (lane j's) times its channels of row
// j.
__device__ void AddWeightedRows(float* sums, float weight, const Tile& tile, int num_rows) {
  const int lane = threadIdx.x % kWarp;
  for (int j = 0; j < num_rows; ++j) {
    const float w = __shfl_sync(kAllLanes, weight, j);
    const float* row = tile.row(j);
#pragma unroll
    for (int slot = 0; slot < kMaxSlots; ++slot) {
      const int c = slot * kWarp + lane;
      if (c < tile.hd) sums[slot] += w * row[c];
    }
  }
}

template <typename Elem>
__device__ void Store(Elem* to, const float* sums, float factor, int64_t hd) {
#pragma unroll
  for (int slot = 0; slot < kMaxSlots; ++slot) {
    const int c = slot * kWarp + static_cast<int>(threadIdx.x % kWarp);
    if (c < hd) to[c] = FromFloat<Elem>(sums[slot] * factor);
  }
}

template <typename Elem>
__global__ void ForwardKernel(Elem* out, float* lse, const Elem* qkv, Heads heads) {
  DSAT_DYNAMIC_SHARED(float, shared);
  const Tile q = TileAt(shared, 0, heads.hd), k = TileAt(shared, 1, heads.hd),
             v = TileAt(shared, 2, heads.hd);
  const int64_t h = blockIdx.y, g = heads.KvHead(h), begin = int64_t{blockIdx.x} * kTile;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float sums[kRowsPerWarp][kMaxSlots] = {};
  float max[kRowsPerWarp], total[kRowsPerWarp];
  for (int r = 0; r < kRowsPerWarp; ++r) {
    max[r] = -INFINITY;
    total[r] = 0.0F;
  }
  Load(q, qkv + heads.Q(blockIdx.z, h), heads.qkv_stride, begin, heads.T);
  for (int64_t keys = 0; keys <= begin; keys += kTile) {
    __syncthreads();
    Load(k, qkv + heads.K(blockIdx.z, g), heads.qkv_stride, keys, heads.T);
    Load(v, qkv + heads.V(blockIdx.z, g), heads.qkv_stride, keys, heads.T);
    __syncthreads();
    const int num_keys = NumRows(keys, heads.T);
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int i = warp * kRowsPerWarp + r;
      if (begin + i >= heads.T) break;
      // The first tile has a key for every query: max is finite from then on.
      const bool seen = keys + lane <= begin + i;
      const float score = seen ? Dot(q.row(i), k.row(lane), heads.hd) * heads.scale : -INFINITY;
      const float new_max = fmaxf(max[r], WarpReduce(score, Max()));
      const float keep = expf(max[r] - new_max);
      const float p = expf(score - new_max);
      max[r] = new_max;
      total[r] = total[r] * keep + WarpReduce(p, Plus());
#pragma unroll
      for (int slot = 0; slot < kMaxSlots; ++slot)
        sums[r][slot] *= keep;
      AddWeightedRows(sums[r], p, v, num_keys);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const int64_t t = begin + warp * kRowsPerWarp + r;
    if (t >= heads.T) continue;
    Store(out + heads.Out(blockIdx.z, h) + t * heads.C, sums[r], 1.0F / total[r], heads.hd);
    if (lane == 0) lse[heads.Stat(blockIdx.z, h) + t] = max[r] + logf(total[r]);
  }
}

// delta (B, H, T) = the dot products of rows of out and dout: a warp per row.
template <typename Elem>
__global__ void DeltaKernel(float* delta, const Elem* out, const Elem* dout, Heads heads) {
  const int lane = threadIdx.x % kWarp;
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (t >= heads.T) return;
  const int64_t at = heads.Out(blockIdx.z, blockIdx.y) + t * heads.C;
  float sum = 0.0F;
  for (int64_t c = lane; c < heads.hd; c += kWarp)
    sum += ToFloat(out[at + c]) * ToFloat(dout[at + c]);
  sum = WarpReduce(sum, Plus());
  if (lane == 0) delta[heads.Stat(blockIdx.z, blockIdx.y) + t] = sum;
}

// One number of a tile: its probability, and the gradient of its score, times the scale.
struct ScoreGrad {
  float p = 0.0F;
  float ds = 0.0F;
};
__device__ ScoreGrad GradOf(const float* q, const float* k, const float* dout, const float* v,
                            float lse, float delta, const Heads& heads) {
  const float p = expf(Dot(q, k, heads.hd) * heads.scale - lse);
  return {p, p * (Dot(dout, v, heads.hd) - delta) * heads.scale};
}

template <typename Elem>
__global__ void QueryGradKernel(Elem* dqkv, const Elem* qkv, const Elem* dout, const float* lse,
                                const float* delta, Heads heads) {
  DSAT_DYNAMIC_SHARED(float, shared);
  const Tile q = TileAt(shared, 0, heads.hd), grad = TileAt(shared, 1, heads.hd),
             k = TileAt(shared, 2, heads.hd), v = TileAt(shared, 3, heads.hd);
  const int64_t h = blockIdx.y, g = heads.KvHead(h), begin = int64_t{blockIdx.x} * kTile;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float sums[kRowsPerWarp][kMaxSlots] = {};
  Load(q, qkv + heads.Q(blockIdx.z, h), heads.qkv_stride, begin, heads.T);
  Load(grad, dout + heads.Out(blockIdx.z, h), heads.C, begin, heads.T);
  for (int64_t keys = 0; keys <= begin; keys += kTile) {
    __syncthreads();
    Load(k, qkv + heads.K(blockIdx.z, g), heads.qkv_stride, keys, heads.T);
    Load(v, qkv + heads.V(blockIdx.z, g), heads.qkv_stride, keys, heads.T);
    __syncthreads();
    const int num_keys = NumRows(keys, heads.T);
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int i = warp * kRowsPerWarp + r;
      if (begin + i >= heads.T) break;
      const int64_t t = begin + i;
      ScoreGrad score;
      if (keys + lane <= t) {
        score =
            GradOf(q.row(i), k.row(lane), grad.row(i), v.row(lane),
                   lse[heads.Stat(blockIdx.z, h) + t], delta[heads.Stat(blockIdx.z, h) + t], heads);
      }
      AddWeightedRows(sums[r], score.ds, k, num_keys);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const int64_t t = begin + warp * kRowsPerWarp + r;
    if (t < heads.T)
      Store(dqkv + heads.Q(blockIdx.z, h) + t * heads.qkv_stride, sums[r], 1.0F, heads.hd);
  }
}

// blockIdx.y is a head of keys; its heads of queries come one after another.
template <typename Elem>
__global__ void KeyGradKernel(Elem* dqkv, const Elem* qkv, const Elem* dout, const float* lse,
                              const float* delta, Heads heads) {
  DSAT_DYNAMIC_SHARED(float, shared);
  const Tile q = TileAt(shared, 0, heads.hd), grad = TileAt(shared, 1, heads.hd),
             k = TileAt(shared, 2, heads.hd), v = TileAt(shared, 3, heads.hd);
  const int64_t g = blockIdx.y, begin = int64_t{blockIdx.x} * kTile, shared_by = heads.H / heads.G;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float dk[kRowsPerWarp][kMaxSlots] = {}, dv[kRowsPerWarp][kMaxSlots] = {};
  Load(k, qkv + heads.K(blockIdx.z, g), heads.qkv_stride, begin, heads.T);
  Load(v, qkv + heads.V(blockIdx.z, g), heads.qkv_stride, begin, heads.T);
  for (int64_t h = g * shared_by; h < (g + 1) * shared_by; ++h) {
    for (int64_t queries = begin; queries < heads.T; queries += kTile) {
      __syncthreads();
      Load(q, qkv + heads.Q(blockIdx.z, h), heads.qkv_stride, queries, heads.T);
      Load(grad, dout + heads.Out(blockIdx.z, h), heads.C, queries, heads.T);
      __syncthreads();
      const int64_t t = queries + lane;
      const int num_queries = NumRows(queries, heads.T);
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const int j = warp * kRowsPerWarp + r;
        if (begin + j >= heads.T) break;
        ScoreGrad score;
        if (t < heads.T && begin + j <= t) {
          score = GradOf(q.row(lane), k.row(j), grad.row(lane), v.row(j),
                         lse[heads.Stat(blockIdx.z, h) + t], delta[heads.Stat(blockIdx.z, h) + t],
                         heads);
        }
        AddWeightedRows(dk[r], score.ds, q, num_queries);
        AddWeightedRows(dv[r], score.p, grad, num_queries);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const int64_t key = begin + warp * kRowsPerWarp + r;
    if (key >= heads.T) continue;
    Store(dqkv + heads.K(blockIdx.z, g) + key * heads.qkv_stride, dk[r], 1.0F, heads.hd);
    Store(dqkv + heads.V(blockIdx.z, g) + key * heads.qkv_stride, dv[r], 1.0F, heads.hd);
  }
}

// Tiles, heads and sequences.
dim3 Grid(const AttentionShape& s, int64_t num_heads, int64_t tile) {
  return dim3(static_cast<unsigned>((s.T + tile - 1) / tile), static_cast<unsigned>(num_heads),
              static_cast<unsigned>(s.B));
}

template <typename Kernel>
int SharedBytes(Kernel kernel, int num_tiles, int64_t hd) {
  return AllowShared(kernel, static_cast<int>(num_tiles * TileBytes(hd)));
}

void Forward(const op::AttentionForward& op) {
  if (TensorCoresTake(op)) return TensorAttentionForward(op);
  const Heads heads = HeadsOf(op.shape);
  Visit(op.qkv.dtype, [&]<typename Elem>(Elem) {
    const int bytes = SharedBytes(ForwardKernel<Elem>, 3, heads.hd);
    Launch(ForwardKernel<Elem>, {Grid(op.shape, heads.H, kTile), kWarps * kWarp, bytes}, op.out,
           op.lse, op.qkv, heads);
  });
}

void Backward(const op::AttentionBackward& op) {
  if (TensorCoresTake(op)) return TensorAttentionBackward(op);
  const Heads heads = HeadsOf(op.shape);
  const Tensor& delta = op.scratch;
  Visit(op.qkv.dtype, [&]<typename Elem>(Elem) {
    Launch(DeltaKernel<Elem>, {Grid(op.shape, heads.H, kWarps), kWarps * kWarp}, delta, op.out,
           op.dout, heads);
    int bytes = SharedBytes(QueryGradKernel<Elem>, kTilesOfGrad, heads.hd);
    Launch(QueryGradKernel<Elem>, {Grid(op.shape, heads.H, kTile), kWarps * kWarp, bytes}, op.dqkv,
           op.qkv, op.dout, op.lse, delta, heads);
    bytes = SharedBytes(KeyGradKernel<Elem>, kTilesOfGrad, heads.hd);
    Launch(KeyGradKernel<Elem>, {Grid(op.shape, heads.G, kTile), kWarps * kWarp, bytes}, op.dqkv,
           op.qkv, op.dout, op.lse, delta, heads);
  });
}

// Whether a block of this GPU has enough shared memory for the backward pass.
bool HasRoom(const op::AttentionBackward& op) {
  return TensorCoresTake(op) ||
         kTilesOfGrad * TileBytes(op.shape.HeadChannels()) <= MostSharedBytes();
}

// Calls run(op) for as many sequences at a time as a grid has in the dimension that the kernels use
// for them.
template <typename Op, typename Fn>
void ForSequences(const Op& all, const Fn& run) {
  constexpr int64_t kMost = 65535;
  const AttentionShape& s = all.shape;
  for (int64_t begin = 0; begin < s.B; begin += kMost) {
    Op part = all;
    part.shape.B = std::min(kMost, s.B - begin);
    const auto skip = [&](Tensor& t, int64_t sequence_elems) {
      const int64_t bytes = begin * sequence_elems * BytesPerElem(t.dtype);
      if (t.data != nullptr) t.data = static_cast<char*>(t.data) + bytes;
    };
    skip(part.out, s.T * s.C);
    skip(part.qkv, s.T * s.QkvChannels());
    skip(part.lse, s.H * s.T);
    if constexpr (requires { part.dqkv; }) {
      skip(part.dout, s.T * s.C);
      skip(part.dqkv, s.T * s.QkvChannels());
      skip(part.scratch, s.H * s.T);
    }
    run(part);
  }
}

}  // namespace

template <>
void RunOp(const op::AttentionForward& op, CudaWorkspace&) {
  DSAT_CHECK(op.shape.HeadChannels() <= kMaxCudaHeadChannels);
  ForSequences(op, Forward);
}

template <>
void RunOp(const op::AttentionBackward& op, CudaWorkspace&) {
  DSAT_CHECK(op.scratch.bytes() >= CudaAttentionScratchBytes(op.shape), "{} bytes",
             op.scratch.bytes());
  if (!HasRoom(op)) {
    Throw(ErrorCode::kUnimplemented,
          "attention: the gradients of heads of {} channels in this precision need more shared "
          "memory than a block of this GPU has: use bf16 or fp16 and a number of channels that 8 "
          "divides, or more heads",
          op.shape.HeadChannels());
  }
  ForSequences(op, Backward);
}

}  // namespace dsat::engine::cuda
