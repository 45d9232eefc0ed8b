// Which samples a rank trains on.
#include "engine/batch_loader.h"

namespace dsat::engine {

BatchLoader::BatchLoader(const Dataset* dataset, Arena& arena, const BatchSizes& sizes,
                         int64_t seq_len, int rank, int world_size)
    : dataset_(dataset), sizes_(sizes), rank_(rank), world_size_(world_size) {
  const int64_t bytes = sizes.micro_batch_size * seq_len * static_cast<int64_t>(sizeof(int32_t));
  tokens_ = arena.Allocate(bytes, "batch");
  targets_ = arena.Allocate(bytes, "batch");
  batch_.B = sizes.micro_batch_size;
  batch_.T = seq_len;
  batch_.tokens = static_cast<const int32_t*>(tokens_.data());
  batch_.targets = static_cast<const int32_t*>(targets_.data());
}

const Batch& BatchLoader::Load(int64_t step, int64_t micro_batch) {
  if (tokens_.data() == nullptr) return batch_;
  const int64_t first = step * sizes_.train_batch_size +
                        (micro_batch * world_size_ + rank_) * sizes_.micro_batch_size;
  auto* tokens = static_cast<int32_t*>(tokens_.data());
  auto* targets = static_cast<int32_t*>(targets_.data());
  for (int64_t b = 0; b < batch_.B; ++b) {
    dataset_->Sample(first + b, batch_.T, tokens + b * batch_.T, targets + b * batch_.T);
  }
  return batch_;
}

}  // namespace dsat::engine
