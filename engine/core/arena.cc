// Memory of one tier with a hard limit.
#include "engine/core/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/files.h"
#include "engine/core/buffer_plan.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Blocks carved from segments of a device's memory, where asking for memory and giving it back is
// slow. A block is the beginning of the smallest free range that holds it; ranges side by side in a
// segment join. Not thread-safe.
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
  bool Reserve(int64_t bytes, int64_t most_bytes);
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

  // The smallest free range that holds `bytes`; kNoPlace if none does.
  Place RangeFor(int64_t bytes) const;
  void ReleaseFreeSegments(int64_t most_bytes);

  MemorySource& source_;
  const int64_t granule_bytes_;
  std::map<Place, Segment> segments_;  // By begin; there is a gap behind each.
  FreeRanges free_;
  Place end_ = 0;
  int64_t reserved_bytes_ = 0;
  int64_t num_blocks_ = 0;
};

SegmentPool::SegmentPool(MemorySource& source)
    : source_(source), granule_bytes_(source.granule_bytes()) {}

SegmentPool::Place SegmentPool::Take(int64_t bytes, int64_t most_bytes) {
  Place place = RangeFor(bytes);
  if (place == kNoPlace && Reserve(bytes, most_bytes)) place = RangeFor(bytes);
  if (place != kNoPlace) TakeAt(place, bytes);
  return place;
}

SegmentPool::Place SegmentPool::RangeFor(int64_t bytes) const {
  Place smallest = kNoPlace;
  int64_t smallest_bytes = 0;
  for (const auto& [begin, size] : free_.ranges()) {
    if (size < bytes || (smallest != kNoPlace && size >= smallest_bytes)) continue;
    smallest = begin;
    smallest_bytes = size;
  }
  return smallest;
}

bool SegmentPool::TakeAt(Place place, int64_t bytes) {
  if (!free_.Take(place, bytes)) return false;
  ++num_blocks_;
  return true;
}

bool SegmentPool::Reserve(int64_t bytes, int64_t most_bytes) {
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
  free_.Add(end_, size);
  end_ += size + granule_bytes_;
  reserved_bytes_ += size;
  return true;
}

void SegmentPool::Free(Place place, int64_t bytes) {
  free_.Add(place, bytes);
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
    if (!free_.Take(begin, segment.bytes)) continue;
    source_.Free(segment.data, segment.bytes);
    reserved_bytes_ -= segment.bytes;
    it = segments_.erase(it);
  }
}

MemorySource* System() {
  static SystemMemory system;
  return &system;
}

}  // namespace

// The places of buffers in segments, and the requests of a counting arena.
struct Arena::Places {
  std::optional<SegmentPool> pool;
  BufferPlan plan;
  size_t next_request = 0;  // Index into the requests of the plan.
  int64_t num_steps = 0;
  std::vector<Request> requests;  // The requests of a counting arena.
  std::vector<size_t> steps;      // The first request of each step.
  int64_t num_events = 0;
};

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Free();
  arena_ = std::exchange(other.arena_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  place_ = other.place_;
  return *this;
}

void Buffer::Free() {
  if (arena_ == nullptr) return;
  arena_->Release(*this);
  arena_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

bool Arena::WantsPlan() const {
  return places_->pool && places_->pool->is_empty();
}

BufferPlan Arena::PlanRequests() const {
  return PlanBuffers(places_->requests, places_->steps);
}

int64_t Arena::used_bytes() const {
  return places_->pool ? charged_bytes_ + places_->pool->reserved_bytes() : live_bytes_;
}

bool Arena::host_visible() const {
  return source_->host_visible();
}

Arena::Arena(std::string name, Kind kind, int64_t limit_bytes, MemorySource* source)
    : name_(std::move(name)),
      kind_(kind),
      limit_bytes_(limit_bytes),
      source_(source == nullptr ? System() : source),
      places_(std::make_unique<Places>()) {
  DSAT_CHECK(limit_bytes >= 0, "{}", limit_bytes);
  if (kind == Kind::kReal && source_->granule_bytes() > 0) places_->pool.emplace(*source_);
}

Arena::~Arena() {
  DSAT_CHECK(num_live_blocks_ == 0, "{}: {} buffers outlive their arena", name_, num_live_blocks_);
  ShrinkCacheTo(0);
}

Buffer Arena::Allocate(int64_t bytes, const char* use) {
  DSAT_CHECK(bytes >= 0, "{}: {} bytes for {}", name_, bytes, use);
  const int64_t rounded = RoundUp(bytes);
  Buffer buffer;
  if (places_->pool) {
    TakeFromPool(buffer, rounded, use);
  } else {
    Count(rounded, use);
    if (kind_ == Kind::kReal && rounded > 0) {
      buffer.data_ = TakeBlock(rounded);
      if (buffer.data_ == nullptr) {
        live_bytes_ -= rounded;
        ThrowSystemHasNone(rounded, use);
      }
    }
  }
  peak_bytes_ = std::max(peak_bytes_, used_bytes());
  if (kind_ == Kind::kCounting) {
    buffer.place_ = std::ssize(places_->requests);
    places_->requests.push_back({.bytes = rounded, .begin = places_->num_events++});
  }
  ++num_live_blocks_;
  buffer.arena_ = this;
  buffer.bytes_ = bytes;
  return buffer;
}

Buffer Arena::Charge(int64_t bytes, const char* use) {
  DSAT_CHECK(bytes >= 0, "{}: {} bytes for {}", name_, bytes, use);
  Count(RoundUp(bytes), use);
  charged_bytes_ += RoundUp(bytes);
  peak_bytes_ = std::max(peak_bytes_, used_bytes());
  ++num_live_blocks_;
  Buffer charge;
  charge.arena_ = this;
  charge.bytes_ = bytes;
  charge.place_ = Buffer::kCharge;
  return charge;
}

void Arena::Count(int64_t bytes, const char* use) {
  if (limit_bytes_ > 0 && bytes > limit_bytes_ - used_bytes()) ThrowDoNotFit(bytes, use);
  live_bytes_ += bytes;
}

void Arena::ThrowDoNotFit(int64_t bytes, const char* use) const {
  throw OutOfMemory(
      ErrorCode::kResourceExhausted,
      fmt::format("{}: {} for {} do not fit: {} of {} in use", name_, HumanBytes(bytes), use,
                  HumanBytes(used_bytes()), HumanBytes(limit_bytes_)));
}

// A device that has no more is too small. Other programs share the host, and may leave more later.
void Arena::ThrowSystemHasNone(int64_t bytes, const char* use) const {
  const std::string what = fmt::format("{}: the system has no {} for {}: {} in use", name_,
                                       HumanBytes(bytes), use, HumanBytes(used_bytes()));
  if (!source_->host_visible()) throw OutOfMemory(ErrorCode::kResourceExhausted, what);
  throw Error(ErrorCode::kResourceExhausted, what);
}

int64_t Arena::MostReserved() const {
  return limit_bytes_ == 0 ? 0 : std::max(limit_bytes_ - charged_bytes_, int64_t{1});
}

// Where the memory for all does not suffice, the buffer that does not fit will say so.
void Arena::BeginRun(BufferPlan plan) {
  DSAT_CHECK(WantsPlan());
  places_->plan = {};
  places_->next_request = 0;
  places_->num_steps = 0;
  if (plan.total_bytes == 0) return;
  if (places_->pool->Reserve(plan.total_bytes, MostReserved())) places_->plan = std::move(plan);
}

void Arena::BeginStep() {
  if (kind_ == Kind::kCounting) places_->steps.push_back(places_->requests.size());
  if (places_->plan.steps.empty()) return;
  const auto step = static_cast<size_t>(places_->num_steps++);
  places_->next_request = places_->plan.steps[std::min(step, places_->plan.steps.size() - 1)];
}

void Arena::TakeFromPool(Buffer& buffer, int64_t bytes, const char* use) {
  const size_t request = places_->next_request++;
  if (bytes == 0) return;
  const bool foreseen =
      request < places_->plan.bytes.size() && places_->plan.bytes[request] == bytes;
  if (foreseen && !places_->pool->is_empty()) {
    buffer.place_ = places_->pool->begin() + places_->plan.offsets[request];
    if (!places_->pool->TakeAt(buffer.place_, bytes)) buffer.place_ = SegmentPool::kNoPlace;
  }
  const int64_t most = MostReserved();
  if (buffer.place_ == SegmentPool::kNoPlace) buffer.place_ = places_->pool->Take(bytes, most);
  if (buffer.place_ == SegmentPool::kNoPlace) {
    const bool fits = limit_bytes_ == 0 || places_->pool->SizeWith(bytes) <= most;
    fits ? ThrowSystemHasNone(bytes, use) : ThrowDoNotFit(bytes, use);
  }
  buffer.data_ = places_->pool->AddressOf(buffer.place_);
  live_bytes_ += bytes;
}

void* Arena::TakeBlock(int64_t bytes) {
  if (const auto it = free_blocks_.find(bytes); it != free_blocks_.end()) {
    void* data = it->second.back();
    it->second.pop_back();
    if (it->second.empty()) free_blocks_.erase(it);
    free_bytes_ -= bytes;
    return data;
  }
  const int64_t bound = limit_bytes_ > 0 ? limit_bytes_ : 2 * std::max(peak_bytes_, live_bytes_);
  ShrinkCacheTo(bound - live_bytes_);  // live_bytes_ holds the new block already.
  void* data = source_->Allocate(bytes);
  if (data != nullptr || free_bytes_ == 0) return data;
  ShrinkCacheTo(0);
  return source_->Allocate(bytes);
}

void Arena::Release(const Buffer& buffer) {
  const int64_t rounded = RoundUp(buffer.bytes_);
  live_bytes_ -= rounded;
  --num_live_blocks_;
  if (buffer.place_ == Buffer::kCharge) {
    charged_bytes_ -= rounded;
    return;
  }
  if (kind_ == Kind::kCounting)
    places_->requests[static_cast<size_t>(buffer.place_)].end = places_->num_events++;
  if (places_->pool) {
    if (rounded > 0) places_->pool->Free(buffer.place_, rounded);
    return;
  }
  if (buffer.data_ == nullptr) return;
  free_blocks_[rounded].push_back(buffer.data_);
  free_bytes_ += rounded;
}

void Arena::ShrinkCacheTo(int64_t bytes) {
  while (free_bytes_ > bytes) {
    const auto largest = std::prev(free_blocks_.end());
    source_->Free(largest->second.back(), largest->first);
    free_bytes_ -= largest->first;
    largest->second.pop_back();
    if (largest->second.empty()) free_blocks_.erase(largest);
  }
}

}  // namespace dsat::engine
