// Which samples a rank trains on, and their way to the device.
#include "engine/runtime/executor/batch_loader.h"

#include <algorithm>
#include <type_traits>

#include "engine/backend/stream.h"

namespace dsat::engine {
namespace {

static_assert(sizeof(int32_t) == sizeof(float));
constexpr int64_t kElemBytes = sizeof(int32_t);  // Of tokens, pixels and targets.

void MakeRoom(Arena& arena, Buffer& buffer, int64_t num_elems) {
  if (buffer && buffer.bytes() >= num_elems * kElemBytes) return;
  buffer.Free();
  buffer = arena.Allocate(num_elems * kElemBytes, "batch");
}

}  // namespace

BatchLoader::BatchLoader(const Dataset* dataset, Arena& arena, Kernels& kernels,
                         const BatchSizes& sizes, int64_t seq_len, int rank, int world_size,
                         const ImageShape& image)
    : dataset_(dataset),
      arena_(arena),
      kernels_(kernels),
      sizes_(sizes),
      rank_(rank),
      world_size_(world_size),
      image_elems_(image.NumElems()) {
  batch_.B = sizes.micro_batch_size;
  batch_.T = seq_len;
  ToDevice(batch_);
}

const Batch& BatchLoader::Load(int64_t step, int64_t micro_batch) {
  if (device_inputs_.data() == nullptr) return batch_;
  DSAT_CHECK(dataset_ != nullptr);
  const int64_t first = step * sizes_.train_batch_size +
                        (micro_batch * world_size_ + rank_) * sizes_.micro_batch_size;
  targets_.resize(static_cast<size_t>(batch_.B * batch_.T));
  batch_.targets = targets_.data();
  if (image_elems_ > 0) {
    pixels_.resize(static_cast<size_t>(batch_.B * image_elems_));
    batch_.pixels = pixels_.data();
  } else {
    tokens_.resize(targets_.size());
    batch_.tokens = tokens_.data();
  }
  for (int64_t b = 0; b < batch_.B; ++b) {
    int32_t* targets = targets_.data() + b * batch_.T;
    const int64_t sample = std::min(first + b, last_sample_);
    if (image_elems_ > 0) {
      dataset_->Image(sample, pixels_.data() + b * image_elems_, targets);
    } else {
      dataset_->Sample(sample, batch_.T, tokens_.data() + b * batch_.T, targets);
    }
  }
  return batch_;
}

const Batch& BatchLoader::ToDevice(const Batch& batch) {
  const int64_t num_targets = batch.B * batch.T;
  const int64_t num_inputs = image_elems_ > 0 ? batch.B * image_elems_ : num_targets;
  MakeRoom(arena_, device_inputs_, num_inputs);
  MakeRoom(arena_, device_targets_, num_targets);
  device_batch_ = {.B = batch.B, .T = batch.T};
  const auto copy = [&](const auto* from, const Buffer& room, int64_t num_elems) {
    using Elem = std::remove_cvref_t<decltype(*from)>;
    if (from == nullptr) return static_cast<const Elem*>(nullptr);
    kernels_.stream().UploadLater(room.data(), from, num_elems * kElemBytes);
    return static_cast<const Elem*>(room.data());
  };
  device_batch_.tokens = copy(batch.tokens, device_inputs_, num_inputs);
  device_batch_.pixels = copy(batch.pixels, device_inputs_, num_inputs);
  device_batch_.targets = copy(batch.targets, device_targets_, num_targets);
  return device_batch_;
}

}  // namespace dsat::engine
