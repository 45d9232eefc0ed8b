// Token and position embeddings.
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

template <typename T>
__global__ void ForwardKernel(T* y, const int32_t* tokens, const T* wte, const T* wpe, int64_t T_,
                              int64_t C) {
  const int64_t row = blockIdx.x;
  const T* word = wte + tokens[row] * C;
  const T* position = wpe + row % T_ * C;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    y[row * C + c] =
        wpe == nullptr ? word[c] : FromFloat<T>(ToFloat(word[c]) + ToFloat(position[c]));
  }
}

// The gradient of the token embedding takes O(N) work for N rows, whatever the tokens are. The rows
// are sorted by token, stably and a digit at a time from the lowest (a radix sort), so that the
// rows of a token are neighbors in ascending order: a run. Each run is then summed in the order of
// its rows, tile by tile. No atomics are used, so the result does not depend on timing.
struct alignas(8) Entry {
  int32_t token;
  int32_t row;
};

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kThreads, "one thread for each digit");
constexpr int kSortWarps = kThreads / kWarp;
constexpr int kSortRounds = 4;                         // Entries of a thread.
constexpr int64_t kSortTile = kThreads * kSortRounds;  // Entries of a block.

int64_t NumTiles(int64_t N, int64_t tile) {
  return (N + tile - 1) / tile;
}

struct SortPass {
  const int32_t* tokens;
  const Entry* from;  // nullptr in the first pass, which reads the tokens in their own order.
  int shift;          // The lowest bit of the digit.
  int64_t N;

  __device__ Entry Get(int64_t i) const {
    return from == nullptr ? Entry{tokens[i], static_cast<int32_t>(i)} : from[i];
  }
};

// Calls fn(entry, digit's count before it) for the entries of the warp's part of the block's tile,
// in order, and counts them in `counts` (kDigits), which belongs to the warp.
template <typename Fn>
__device__ void CountEntries(const SortPass& pass, int* counts, const Fn& fn) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t begin =
      blockIdx.x * kSortTile + int64_t{threadIdx.x} / kWarp * (kSortRounds * kWarp);
  for (int round = 0; round < kSortRounds; ++round) {
    const int64_t i = begin + round * kWarp + lane;
    const bool valid = i < pass.N;
    const Entry entry = valid ? pass.Get(i) : Entry{};
    const int digit = valid ? entry.token >> pass.shift & (kDigits - 1) : kDigits;
    const unsigned same = __match_any_sync(kAllLanes, digit);
    const int before = __popc(same & ((1U << lane) - 1));
    if (valid) fn(entry, counts[digit] + before);
    __syncwarp();
    if (valid && before == 0) counts[digit] += __popc(same);
    __syncwarp();
  }
}

// counts (kDigits, tiles) = how often each digit occurs in each tile.
__global__ void CountDigitsKernel(int32_t* counts, SortPass pass) {
  __shared__ int warp_counts[kSortWarps][kDigits];
  const int digit = static_cast<int>(threadIdx.x);
  for (int warp = 0; warp < kSortWarps; ++warp)
    warp_counts[warp][digit] = 0;
  __syncthreads();
  CountEntries(pass, warp_counts[digit / kWarp], [](const Entry&, int) {});
  __syncthreads();
  int count = 0;
  for (int warp = 0; warp < kSortWarps; ++warp)
    count += warp_counts[warp][digit];
  counts[digit * gridDim.x + blockIdx.x] = count;
}

// Each count becomes the sum of those before it; one block.
__global__ void SumCountsKernel(int32_t* counts, int64_t tiles) {
  __shared__ int sums[kDigits];
  const int digit = static_cast<int>(threadIdx.x);
  int32_t* const own = counts + digit * tiles;
  int sum = 0;
  for (int64_t tile = 0; tile < tiles; ++tile)
    sum += own[tile];
  sums[digit] = sum;
  __syncthreads();
  for (int distance = 1; distance < kDigits; distance *= 2) {
    const int before = digit < distance ? 0 : sums[digit - distance];
    __syncthreads();
    sums[digit] += before;
    __syncthreads();
  }
  int offset = sums[digit] - sum;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int count = own[tile];
    own[tile] = offset;
    offset += count;
  }
}

// to = the entries in the order of their digit; `offsets` are what SumCountsKernel made.
__global__ void MoveEntriesKernel(Entry* to, const int32_t* offsets, SortPass pass) {
  __shared__ int places[kSortWarps][kDigits];
  const int digit = static_cast<int>(threadIdx.x);
  for (int warp = 0; warp < kSortWarps; ++warp)
    places[warp][digit] = 0;
  __syncthreads();
  CountEntries(pass, places[digit / kWarp], [](const Entry&, int) {});
  __syncthreads();
  int offset = offsets[digit * gridDim.x + blockIdx.x];
  for (int warp = 0; warp < kSortWarps; ++warp) {
    const int count = places[warp][digit];
    places[warp][digit] = offset;
    offset += count;
  }
  __syncthreads();
  CountEntries(pass, places[digit / kWarp],
               [&](const Entry& entry, int place) { to[place] = entry; });
}

// A block sums at most this many rows, one after another; its threads look at one entry each.
constexpr int kRunTile = 128;

__device__ void AddTo(Octet& sum, const Octet& more) {
#pragma unroll
  for (int j = 0; j < kOctet; ++j)
    sum[j] += more[j];
}

template <typename T>
__device__ void AddToRow(T* row, int64_t c, int64_t C, Octet sum) {
  AddTo(sum, LoadOctet(row, c, C));
  StoreOctet(row, c, C, sum);
}

// The sum of columns [c, c + 8) of dy's rows.
template <typename T>
__device__ Octet SumRows(const T* dy, const int32_t* rows, int count, int64_t c, int64_t C) {
  Octet sum = {};
  if (TakesWords(dy) && C % kOctet == 0) {
    // Without a branch in the loop, several loads are under way at a time.
#pragma unroll 4
    for (int k = 0; k < count; ++k)
      AddTo(sum, LoadWords(dy + rows[k] * C + c));
  } else {
    for (int k = 0; k < count; ++k)
      AddTo(sum, LoadOctet(dy + rows[k] * C, c, C));
  }
  return sum;
}

// The block of a run's first entry in each tile adds up the run's rows of that tile. A run that
// lies within one tile is done. Else the sum goes to parts (tiles, 2, C): the first of the two if
// the run covers the tile's beginning, else the second.
template <typename T>
__global__ void SumRunsKernel(T* dwte, float* parts, const Entry* entries, const T* dy, int64_t N,
                              int64_t C) {
  __shared__ int32_t rows[kRunTile];
  const int64_t begin = blockIdx.x;
  const int32_t token = entries[begin].token;
  const bool is_first = begin == 0 || entries[begin - 1].token != token;
  if (!is_first && begin % kRunTile != 0) return;
  const int64_t tile = begin / kRunTile;
  const int64_t i = begin + threadIdx.x;
  const bool is_own = i < min(N, (tile + 1) * kRunTile) && entries[i].token == token;
  if (is_own) rows[threadIdx.x] = entries[i].row;
  const int count = __syncthreads_count(is_own ? 1 : 0);
  const bool is_last = begin + count == N || entries[begin + count].token != token;
  float* const part = parts + (2 * tile + (begin % kRunTile == 0 ? 0 : 1)) * C;
  for (int64_t c = int64_t{threadIdx.x} * kOctet; c < C; c += kRunTile * kOctet) {
    const Octet sum = SumRows(dy, rows, count, c, C);
    if (is_first && is_last) {
      AddToRow(dwte + token * C, c, C, sum);
    } else {
      StoreOctet(part, c, C, sum);
    }
  }
}

// The block of the tile in which a run of several tiles begins adds up the run's parts.
template <typename T>
__global__ void SumPartsKernel(T* dwte, const float* parts, const Entry* entries, int64_t N,
                               int64_t C) {
  const int64_t begin = int64_t{blockIdx.x} * kRunTile, end = begin + kRunTile;
  if (end >= N) return;
  const int32_t token = entries[end - 1].token;
  if (entries[end].token != token) return;
  const bool covers_tile = entries[begin].token == token;
  if (covers_tile && begin > 0 && entries[begin - 1].token == token) return;
  for (int64_t c = int64_t{threadIdx.x} * kOctet; c < C; c += kRunTile * kOctet) {
    int64_t tile = blockIdx.x;
    Octet sum = LoadOctet(parts + (2 * tile + (covers_tile ? 0 : 1)) * C, c, C);
    while (++tile * kRunTile < N && entries[tile * kRunTile].token == token)
      AddTo(sum, LoadOctet(parts + 2 * tile * C, c, C));
    AddToRow(dwte + token * C, c, C, sum);
  }
}

// Where EmbeddingBackward keeps what.
struct Workspace {
  Workspace(CudaWorkspace& memory, int64_t N, int64_t C)
      : parts(static_cast<float*>(memory.Get(Bytes(N, C)))),
        entries(reinterpret_cast<Entry*>(parts + 2 * NumTiles(N, kRunTile) * C)),
        counts(reinterpret_cast<int32_t*>(entries + 2 * N)) {}

  float* parts;
  Entry* entries;  // Twice N: a pass of the sort reads one half and writes the other.
  int32_t* counts;

 private:
  static int64_t Bytes(int64_t N, int64_t C) {
    const int64_t part_bytes = 2 * NumTiles(N, kRunTile) * C * int64_t{sizeof(float)};
    const int64_t count_bytes = kDigits * NumTiles(N, kSortTile) * int64_t{sizeof(int32_t)};
    return part_bytes + 2 * N * int64_t{sizeof(Entry)} + count_bytes;
  }
};

// The entries of N tokens below V in order: one half of the workspace's.
const Entry* SortEntries(const Workspace& workspace, const int32_t* tokens, int64_t N, int64_t V) {
  const int64_t tiles = NumTiles(N, kSortTile);
  const auto blocks = static_cast<unsigned>(tiles);
  SortPass pass = {.tokens = tokens, .from = nullptr, .shift = 0, .N = N};
  Entry* to = workspace.entries;
  do {
    Launch(CountDigitsKernel, {blocks, kThreads}, workspace.counts, pass);
    Launch(SumCountsKernel, {1, kThreads}, workspace.counts, tiles);
    Launch(MoveEntriesKernel, {blocks, kThreads}, to, workspace.counts, pass);
    pass.from = to;
    pass.shift += kDigitBits;
    to = workspace.entries + (to == workspace.entries ? N : 0);
  } while ((V - 1) >> pass.shift > 0);
  return pass.from;
}

template <typename T>
void AddTokenGrads(const op::EmbeddingBackward& op, const Workspace& workspace) {
  const int64_t N = op.B * op.T;
  const Entry* entries = SortEntries(workspace, op.tokens, N, op.dwte.num_elems / op.C);
  T* dwte = Data<T>(op.dwte);
  Launch(SumRunsKernel<T>, {static_cast<unsigned>(N), kRunTile}, dwte, workspace.parts, entries,
         op.dy, N, op.C);
  Launch(SumPartsKernel<T>, {static_cast<unsigned>(NumTiles(N, kRunTile)), kRunTile}, dwte,
         workspace.parts, entries, N, op.C);
}

template <typename T>
__global__ void PositionGradKernel(T* dwpe, const T* dy, int64_t B, int64_t T_, int64_t C) {
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    float sum = 0.0F;
    for (int64_t b = 0; b < B; ++b)
      sum += ToFloat(dy[(b * T_ + t) * C + c]);
    T& out = dwpe[t * C + c];
    out = FromFloat<T>(ToFloat(out) + sum);
  }
}

__global__ void WindowsKernel(int32_t* windows, const int32_t* tokens, int64_t n, int64_t T,
                              int64_t context) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride()) {
    const int64_t row = i / context;
    const int64_t back = context - 1 - i % context;  // Tokens before the row's own.
    windows[i] = back > row % T ? 0 : tokens[row - back];
  }
}

}  // namespace

template <>
void RunOp(const op::EmbeddingForward& op, CudaWorkspace&) {
  Visit(op.y.dtype, [&]<typename Elem>(Elem) {
    Launch(ForwardKernel<Elem>, {static_cast<unsigned>(op.B * op.T), kThreads}, op.y, op.tokens,
           op.wte, op.wpe, op.T, op.C);
  });
}

template <>
void RunOp(const op::EmbeddingBackward& op, CudaWorkspace& workspace) {
  if (op.B * op.T == 0) return;
  Visit(op.dy.dtype, [&]<typename Elem>(Elem) {
    AddTokenGrads<Elem>(op, Workspace(workspace, op.B * op.T, op.C));
    if (op.dwpe.data == nullptr) return;
    Launch(PositionGradKernel<Elem>, {static_cast<unsigned>(op.T), kThreads}, op.dwpe, op.dy, op.B,
           op.T, op.C);
  });
}

template <>
void RunOp(const op::TokenWindows& op, CudaWorkspace&) {
  const int64_t n = op.B * op.T * op.context;
  Launch(WindowsKernel, {NumBlocks(n), kThreads}, op.windows, op.tokens, n, op.T, op.context);
}

}  // namespace dsat::engine::cuda
