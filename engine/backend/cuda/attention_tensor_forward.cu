// Causal attention on tensor cores in the shape of FlashAttention-2 (Dao 2023), forward.
//
// A block has 128 queries of a head, a warp 32 of them; tiles of keys and values pass by, the next
// one being copied while the present one is multiplied, with one barrier a tile.
//
// Why these sizes. A warp of two row tiles uses what it reads from shared memory twice: with one,
// reading (256 bytes a product, of 128 a clock) would take as long as multiplying on sm_80, longer
// on sm_90. Sums, scores and kept queries then take 160 registers a lane, and all of them up to
// 255: two blocks a multiprocessor, eight warps, two for each scheduler, so that the exponentials
// of one hide behind the products of the other. For 128 channels that leaves scores of 32 keys
// instead of 64. Shared memory, 48 and 64 KiB a block, is no limit beside that.
#include "engine/backend/cuda/attention_tile.h"

namespace dsat::engine::cuda {
namespace {

constexpr int kTiles = 2;  // Tiles of 16 rows for each warp.
constexpr int kBlockThreads = 4 * kWarp;
constexpr int kRows = 4 * 16 * kTiles;
template <int kD>
constexpr int kColumns = kD == 64 ? 64 : 32;

__device__ float ReduceQuad(float x, bool max) {
  for (int offset = 1; offset < 4; offset *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, offset);
    x = max ? fmaxf(x, other) : x + other;
  }
  return x;
}

// Softmax over tiles of columns as they come (Milakov and Gimelshein 2018), for two rows a lane and
// row tile. A row's total is the sum of its four lanes'.
struct Softmax {
  float factor;  // From scores to powers of 2.
  float max[kTiles][2], total[kTiles][2];

  __device__ explicit Softmax(float scale) : factor(scale * kLog2E) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      max[i / 2][i % 2] = -INFINITY;
      total[i / 2][i % 2] = 0.0F;
    }
  }

  // Makes scores weights under the new maxima, and the sums so far as well. Each row sees a key of
  // the first tile: maxima are finite from then on.
  template <int kSteps, int kOutSteps>
  __device__ void Add(float (&scores)[kTiles][kSteps][4], float (&sums)[kTiles][kOutSteps][4]) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int m = i / 2, half = i % 2;
      float highest = max[m][half];
#pragma unroll
      for (int n = 0; n < kSteps; ++n)
        highest = fmaxf(highest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      highest = ReduceQuad(highest, /*max=*/true);
      const float keep = Exp2((max[m][half] - highest) * factor);
      max[m][half] = highest;
      float sum = total[m][half] * keep;
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[m][n][e] = Exp2(scores[m][n][e] * factor - highest * factor);
          sum += scores[m][n][e];
        }
      }
      total[m][half] = sum;
#pragma unroll
      for (int n = 0; n < kOutSteps; ++n) {
        sums[m][n][2 * half] *= keep;
        sums[m][n][2 * half + 1] *= keep;
      }
    }
  }
};

// Blocks with the most keys come first, so that short ones fill the end: tile gridDim.z - 1 -
// blockIdx.z of head blockIdx.x of sequence blockIdx.y.
template <typename Elem, int kD>
__global__ void __launch_bounds__(kBlockThreads, 2)
    ForwardKernel(Elem* out, float* lse, const Elem* qkv, Heads heads) {
  constexpr int kKeys = kColumns<kD>, kTileBytes = kKeys * kD * 2;
  DSAT_DYNAMIC_SHARED(SharedLine, shared);
  const SharedAddress q = AddressOf(shared);
  const SharedAddress stages = q + kRows * kD * 2;  // Keys, then values, twice.
  const int64_t h = blockIdx.x, b = blockIdx.y, g = heads.KvHead(h);
  const int T = static_cast<int>(heads.T), hd = static_cast<int>(heads.hd);
  const int begin = static_cast<int>(gridDim.z - 1 - blockIdx.z) * kRows;
  const int first = static_cast<int>(threadIdx.x) / kWarp * 16 * kTiles;  // The warp's row.
  const HeadRows<const Elem> keys{qkv + heads.K(b, g), heads.qkv_stride, T, hd};
  const HeadRows<const Elem> values{qkv + heads.V(b, g), heads.qkv_stride, T, hd};
  const auto begin_stage = [&](int tile) {
    const SharedAddress stage = stages + tile % 2 * 2 * kTileBytes;
    BeginTile<kD, kKeys, kBlockThreads>(stage, keys, tile * kKeys);
    BeginTile<kD, kKeys, kBlockThreads>(stage + kTileBytes, values, tile * kKeys);
  };
  BeginTile<kD, kRows, kBlockThreads>(
      q, HeadRows<const Elem>{qkv + heads.Q(b, h), heads.qkv_stride, T, hd}, begin);
  begin_stage(0);
  FinishCopies();
  __syncthreads();

  // 64 channels fit beside sums and scores, 128 do not.
  using Queries =
      std::conditional_t<kD == 64, KeptRows<Elem, kD, kTiles>, SharedRows<Elem, kD, kTiles>>;
  const Queries queries(q, first);
  Softmax softmax(heads.scale);
  float sums[kTiles][kD / 8][4] = {};
  const int end = begin + kRows < T ? begin + kRows : T;
  for (int tile = 0; tile * kKeys < end; ++tile) {
    if (tile > 0) {
      FinishCopies();
      __syncthreads();
    }
    if ((tile + 1) * kKeys < end) begin_stage(tile + 1);
    const SharedAddress stage = stages + tile % 2 * 2 * kTileBytes;
    const int column = tile * kKeys, row = begin + first;
    if (column > row + 16 * kTiles - 1) continue;  // After all queries of the warp.
    float scores[kTiles][kKeys / 8][4];
    MultiplyByRows<Elem, kD>(scores, queries, stage);
    if (column + kKeys - 1 > row) Mask</*kRowsAreKeys=*/false>(scores, row, column);
    softmax.Add(scores, sums);
    AddWeightedRows<Elem, kD>(sums, scores, stage + kTileBytes);
  }

  float factors[kTiles][2];
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int m = i / 2, half = i % 2, t = begin + first + RowOf(m, 2 * half);
    const float total = ReduceQuad(softmax.total[m][half], /*max=*/false);
    factors[m][half] = 1.0F / total;
    if (Lane() % 4 == 0 && t < T) {
      lse[heads.Stat(b, h) + t] = softmax.max[m][half] * heads.scale + logf(total);
    }
  }
  StoreRows<kD>(HeadRows<Elem>{out + heads.Out(b, h), heads.C, T, hd}, begin,
                reinterpret_cast<char*>(shared), first, sums, factors);
}

template <typename Elem, int kD>
void Run(const op::AttentionForward& op) {
  const int bytes = (kRows + 4 * kColumns<kD>)*kD * static_cast<int>(sizeof(Elem));
  const auto num_tiles = static_cast<unsigned>((op.shape.T + kRows - 1) / kRows);
  const dim3 grid(static_cast<unsigned>(op.shape.H), static_cast<unsigned>(op.shape.B), num_tiles);
  Launch(ForwardKernel<Elem, kD>,
         {grid, kBlockThreads, AllowShared(ForwardKernel<Elem, kD>, bytes)}, op.out, op.lse, op.qkv,
         HeadsOf(op.shape));
}

}  // namespace

void TensorAttentionForward(const op::AttentionForward& op) {
  Visit(op.qkv.dtype, [&]<typename Elem>(Elem) {
    if constexpr (kIsTensorType<Elem>) {
      op.shape.HeadChannels() <= 64 ? Run<Elem, 64>(op) : Run<Elem, 128>(op);
    }
  });
}

}  // namespace dsat::engine::cuda
