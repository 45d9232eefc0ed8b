// The memory that kernels need besides their operands. Predictions of the counting backend are
// exact because the other backends use the same functions.
#pragma once

#include <cstdint>

#include "engine/backend/layer_ops.h"

namespace dsat::engine {

// Query rows that CPU attention works on at a time: a tile of scores is this many rows of T.
inline constexpr int64_t kAttentionTileRows = 128;

// The f32 scratch of one thread of CPU attention, in elements: two tiles; then four slices for
// operands and three for results, or four bf16 slices, three for results and a bf16 tile, whichever
// is larger. f32 parts start on 64 bytes.
struct AttentionScratch {
  int64_t tile = 0;       // one (min(T, kAttentionTileRows), T) tile
  int64_t slice = 0;      // one (T, C / H) slice of a head
  int64_t num_elems = 0;  // all of it
};
AttentionScratch CpuAttentionScratch(const AttentionShape& shape);
// Threads that CPU attention can use: no more than there are heads of keys in the batch.
int CpuAttentionThreads(const AttentionShape& shape, int num_threads);

// The scratch bytes of all threads. Shared by the CPU and the counting backend.
int64_t CpuAttentionScratchBytes(const AttentionShape& shape, int num_threads);

// Scratch bytes of CUDA attention: a number for each query of each head. Throws kUnimplemented if a
// head has more than kMaxCudaHeadChannels. Shared by the CUDA and the counting backend.
int64_t CudaAttentionScratchBytes(const AttentionShape& shape);
// The unit of CUDA's memory: cudaMalloc takes whole pages of 2 MiB from the driver.
inline constexpr int64_t kCudaGranuleBytes = int64_t{2} << 20;
// The memory that the kernels of a rank keep: the workspace of matrix multiplications, and scratch
// for all others, which is enough for micro-batches of 64 Ki tokens and models up to GPT-2's 1558M.
inline constexpr int64_t kCublasWorkspaceBytes = int64_t{32} << 20;
inline constexpr int64_t kCudaScratchBytes = int64_t{8} << 20;
inline constexpr int64_t kCudaWorkspaceBytes = kCublasWorkspaceBytes + kCudaScratchBytes;

}  // namespace dsat::engine
