// Chooses the samples that a rank trains on, and copies them to the device.
#include "engine/runtime/executor/batch_loader.h"

#include <algorithm>
#include <system_error>
#include <type_traits>

#include "engine/backend/stream.h"

namespace dsat::engine {
namespace {

static_assert(sizeof(int32_t) == sizeof(float));
constexpr int64_t kElemBytes = sizeof(int32_t);  // The size of a token, a pixel and a target.

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

BatchLoader::Position BatchLoader::After(const Position& position) const {
  const bool last = position.micro_batch + 1 >= sizes_.accumulation_steps;
  return last ? Position{position.first_sample + sizes_.train_batch_size, 0}
              : Position{position.first_sample, position.micro_batch + 1};
}

BatchLoader::HostBatch BatchLoader::Read(const Position& position) const {
  const int64_t first = position.first_sample +
                        (position.micro_batch * world_size_ + rank_) * sizes_.micro_batch_size;
  HostBatch batch;
  batch.targets.resize(static_cast<size_t>(batch_.B * batch_.T));
  batch.pixels.resize(static_cast<size_t>(batch_.B * image_elems_));
  if (image_elems_ == 0) batch.tokens.resize(batch.targets.size());
  for (int64_t b = 0; b < batch_.B; ++b) {
    int32_t* targets = batch.targets.data() + b * batch_.T;
    const int64_t sample = std::min(first + b, last_sample_);
    if (image_elems_ > 0) {
      dataset_->Image(sample, batch.pixels.data() + b * image_elems_, targets);
    } else {
      dataset_->Sample(sample, batch_.T, batch.tokens.data() + b * batch_.T, targets);
    }
  }
  return batch;
}

const Batch& BatchLoader::Load(int64_t first_sample, int64_t micro_batch) {
  if (device_inputs_.data() == nullptr) return batch_;
  DSAT_CHECK(dataset_ != nullptr);
  const Position position = {first_sample, micro_batch};
  host_batch_ = ahead_.valid() && position == next_ ? ahead_.get() : Read(position);
  next_ = After(position);
  try {
    ahead_ = std::async(std::launch::async, [this, next = next_] { return Read(next); });
  } catch (const std::system_error&) {  // There is no thread: the next call reads.
  }
  batch_.targets = host_batch_.targets.data();
  if (image_elems_ > 0) {
    batch_.pixels = host_batch_.pixels.data();
  } else {
    batch_.tokens = host_batch_.tokens.data();
  }
  return batch_;
}

const Batch& BatchLoader::ToDevice(const Batch& batch) {
  const int64_t num_targets = batch.B * batch.T;
  const int64_t num_inputs = image_elems_ > 0 ? batch.B * image_elems_ : num_targets;
  MakeRoom(arena_, device_inputs_, num_inputs);
  MakeRoom(arena_, device_targets_, num_targets);
  device_batch_ = {.B = batch.B, .T = batch.T};
  if (batch.targets != nullptr)
    device_batch_.num_ignored =
        std::count(batch.targets, batch.targets + num_targets, kIgnoredTarget);
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
