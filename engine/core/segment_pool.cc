// Blocks carved from segments.
#include "engine/core/segment_pool.h"

#include <iterator>

#include "engine/core/memory_source.h"

namespace dsat::engine {

SegmentPool::SegmentPool(MemorySource& source)
    : source_(source), granule_bytes_(source.granule_bytes()) {}

SegmentPool::Place SegmentPool::Take(int64_t bytes, int64_t most_bytes) {
  auto range = by_size_.lower_bound({bytes, 0});
  if (range == by_size_.end()) {
    if (!Grow(bytes, most_bytes)) return kNoPlace;
    range = by_size_.lower_bound({bytes, 0});
  }
  const auto [size, place] = *range;
  RemoveRange(place, size);
  if (size > bytes) AddRange(place + bytes, size - bytes);
  ++num_blocks_;
  return place;
}

bool SegmentPool::TakeAt(Place place, int64_t bytes) {
  auto range = free_.upper_bound(place);
  if (range == free_.begin()) return false;
  const auto [begin, size] = *std::prev(range);
  if (place + bytes > begin + size) return false;
  RemoveRange(begin, size);
  if (place > begin) AddRange(begin, place - begin);
  if (begin + size > place + bytes) AddRange(place + bytes, begin + size - place - bytes);
  ++num_blocks_;
  return true;
}

bool SegmentPool::Grow(int64_t bytes, int64_t most_bytes) {
  const int64_t size = SizeWith(bytes) - reserved_bytes_;
  if (most_bytes > 0 && reserved_bytes_ + size > most_bytes) {
    ReleaseFreeSegments(most_bytes - size);
    if (reserved_bytes_ + size > most_bytes) return false;
  }
  Segment segment{.bytes = size, .data = source_.Allocate(size)};
  if (segment.data == nullptr) {
    ReleaseFreeSegments(0);
    segment.data = source_.Allocate(size);
  }
  if (segment.data == nullptr) return false;
  segments_[end_] = segment;
  AddRange(end_, size);
  end_ += size + granule_bytes_;
  reserved_bytes_ += size;
  return true;
}

void SegmentPool::Free(Place place, int64_t bytes) {
  auto next = free_.lower_bound(place);
  if (next != free_.end() && next->first == place + bytes) {
    const int64_t more = next->second;
    RemoveRange(place + bytes, more);
    bytes += more;
  }
  next = free_.lower_bound(place);
  if (next != free_.begin()) {
    const auto [begin, before] = *std::prev(next);
    if (begin + before == place) {
      RemoveRange(begin, before);
      place = begin;
      bytes += before;
    }
  }
  AddRange(place, bytes);
  if (--num_blocks_ == 0) ReleaseFreeSegments(0);
}

void* SegmentPool::AddressOf(Place place) const {
  const auto& [begin, segment] = *std::prev(segments_.upper_bound(place));
  return static_cast<char*>(segment.data) + (place - begin);
}

// Releases the newest segments first: a run makes what it keeps first.
void SegmentPool::ReleaseFreeSegments(int64_t most_bytes) {
  for (auto it = segments_.end(); it != segments_.begin() && reserved_bytes_ > most_bytes;) {
    --it;
    const auto [begin, segment] = *it;
    const auto range = free_.find(begin);
    if (range == free_.end() || range->second != segment.bytes) continue;
    RemoveRange(begin, segment.bytes);
    source_.Free(segment.data, segment.bytes);
    reserved_bytes_ -= segment.bytes;
    it = segments_.erase(it);
  }
}

void SegmentPool::AddRange(Place begin, int64_t bytes) {
  free_[begin] = bytes;
  by_size_.emplace(bytes, begin);
}

void SegmentPool::RemoveRange(Place begin, int64_t bytes) {
  free_.erase(begin);
  by_size_.erase({bytes, begin});
}

}  // namespace dsat::engine
