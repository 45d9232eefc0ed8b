// Blocks carved from segments of a device's memory, where asking for memory and giving it back is
// slow.
#ifndef DSAT_ENGINE_CORE_SEGMENT_POOL_H_
#define DSAT_ENGINE_CORE_SEGMENT_POOL_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace dsat::engine {

class MemorySource;  // engine/core/memory_source.h

// A block is the beginning of the smallest free range that holds it; ranges side by side in a
// segment join.
//
// Not thread-safe.
class SegmentPool {
 public:
  // A place in the pool's own address space.
  using Place = int64_t;
  static constexpr Place kNoPlace = -1;

  // Segments are multiples of the source's granule. `source` must outlive this.
  explicit SegmentPool(MemorySource& source);
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;
  // REQUIRES: all blocks are free.
  ~SegmentPool() { ReleaseFreeSegments(0); }

  // A block of `bytes` > 0; a multiple of 64. If no free range holds it, a new segment does, and if
  // more than `most_bytes` (0: no limit) would be reserved then, or the source has no more, free
  // segments are given back first. kNoPlace if that does not help.
  Place Take(int64_t bytes, int64_t most_bytes);
  // Makes a segment for `bytes`. False if that is more than `most_bytes` or the source has.
  bool Reserve(int64_t bytes, int64_t most_bytes) { return Grow(bytes, most_bytes); }
  // Takes the block at `place`. False if not all of it is free.
  bool TakeAt(Place place, int64_t bytes);
  // REQUIRES: a block of Take or TakeAt, of this size. With the last block all segments are given
  // back.
  void Free(Place place, int64_t bytes);
  // The address of a block.
  void* AddressOf(Place place) const;

  bool is_empty() const { return segments_.empty(); }
  // The place of the first segment, if there is one.
  Place begin() const { return segments_.begin()->first; }
  // Bytes of all segments.
  int64_t reserved_bytes() const { return reserved_bytes_; }
  // The same with another segment, for a block of `bytes`.
  int64_t SizeWith(int64_t bytes) const {
    return reserved_bytes_ + (bytes + granule_bytes_ - 1) / granule_bytes_ * granule_bytes_;
  }

 private:
  struct Segment {
    int64_t bytes = 0;
    void* data = nullptr;
  };

  bool Grow(int64_t bytes, int64_t most_bytes);
  void ReleaseFreeSegments(int64_t most_bytes);
  void AddRange(Place begin, int64_t bytes);
  void RemoveRange(Place begin, int64_t bytes);

  MemorySource& source_;
  const int64_t granule_bytes_;
  std::map<Place, Segment> segments_;            // By begin; there is a gap behind each.
  std::map<Place, int64_t> free_;                // Bytes of free ranges by begin.
  std::set<std::pair<int64_t, Place>> by_size_;  // The same by size.
  Place end_ = 0;
  int64_t reserved_bytes_ = 0;
  int64_t num_blocks_ = 0;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CORE_SEGMENT_POOL_H_
