// Formulas that the counting backend shares with the others.
#include "engine/backend/cost.h"

#include <algorithm>

#include "engine/core/device_kind.h"

namespace dsat::engine {
namespace {

int64_t RoundUp(int64_t elems) {
  return (elems + 15) / 16 * 16;
}

}  // namespace

AttentionScratch CpuAttentionScratch(const AttentionShape& shape) {
  AttentionScratch scratch;
  scratch.tile = RoundUp(std::min(shape.T, kAttentionTileRows) * shape.T);
  scratch.slice = RoundUp(shape.T * shape.HeadChannels());
  const int64_t results = 3 * scratch.slice;
  const int64_t operands = std::max(4 * scratch.slice, 2 * scratch.slice + scratch.tile / 2);
  scratch.num_elems = RoundUp(2 * scratch.tile + results + operands);
  return scratch;
}

int CpuAttentionThreads(const AttentionShape& shape, int num_threads) {
  return static_cast<int>(std::min<int64_t>(num_threads, shape.B * shape.KvHeads()));
}

int64_t CpuAttentionScratchBytes(const AttentionShape& shape, int num_threads) {
  return CpuAttentionScratch(shape).num_elems * CpuAttentionThreads(shape, num_threads) *
         BytesPerElem(DType::kF32);
}

int64_t CudaAttentionScratchBytes(const AttentionShape& shape) {
  if (shape.HeadChannels() > kMaxCudaHeadChannels) {
    Throw(ErrorCode::kUnimplemented, "attention heads of {} channels on a GPU; expected at most {}",
          shape.HeadChannels(), kMaxCudaHeadChannels);
  }
  return shape.B * shape.H * shape.T * BytesPerElem(DType::kF32);
}

}  // namespace dsat::engine
