// Which samples a rank trains on.
#include "engine/batch_loader.h"

namespace dsat::engine {

BatchLoader::BatchLoader(const Dataset* dataset, Arena& arena, const BatchSizes& sizes,
                         int64_t seq_len, int rank, int world_size, const ImageShape& image)
    : dataset_(dataset),
      sizes_(sizes),
      rank_(rank),
      world_size_(world_size),
      image_elems_(image.NumElems()) {
  constexpr auto kElemBytes = static_cast<int64_t>(sizeof(int32_t));
  static_assert(sizeof(int32_t) == sizeof(float));
  const int64_t num_targets = sizes.micro_batch_size * seq_len;
  const int64_t num_inputs = image_elems_ > 0 ? sizes.micro_batch_size * image_elems_ : num_targets;
  inputs_ = arena.Allocate(num_inputs * kElemBytes, "batch");
  targets_ = arena.Allocate(num_targets * kElemBytes, "batch");
  batch_.B = sizes.micro_batch_size;
  batch_.T = seq_len;
  if (image_elems_ > 0) {
    batch_.pixels = static_cast<const float*>(inputs_.data());
  } else {
    batch_.tokens = static_cast<const int32_t*>(inputs_.data());
  }
  batch_.targets = static_cast<const int32_t*>(targets_.data());
}

const Batch& BatchLoader::Load(int64_t step, int64_t micro_batch) {
  if (inputs_.data() == nullptr) return batch_;
  const int64_t first = step * sizes_.train_batch_size +
                        (micro_batch * world_size_ + rank_) * sizes_.micro_batch_size;
  auto* targets = static_cast<int32_t*>(targets_.data());
  for (int64_t b = 0; b < batch_.B; ++b) {
    if (image_elems_ > 0) {
      dataset_->Image(first + b, static_cast<float*>(inputs_.data()) + b * image_elems_,
                      targets + b);
    } else {
      dataset_->Sample(first + b, batch_.T, static_cast<int32_t*>(inputs_.data()) + b * batch_.T,
                       targets + b * batch_.T);
    }
  }
  return batch_;
}

}  // namespace dsat::engine
