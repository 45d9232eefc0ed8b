// Memory of one tier with a hard limit.
#include "engine/core/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/core/memory_source.h"

namespace dsat::engine {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::string FormatBytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < (int64_t{1} << 10)) return fmt::format("{} B", bytes);
  if (bytes < (int64_t{1} << 20)) return fmt::format("{:.1f} KiB", value / (1 << 10));
  if (bytes < (int64_t{1} << 30)) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} GiB", value / (1 << 30));
}

MemorySource* System() {
  static SystemMemory system;
  return &system;
}

}  // namespace

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Free();
  arena_ = std::exchange(other.arena_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Buffer::Free() {
  if (arena_ == nullptr) return;
  arena_->Release(data_, bytes_);
  arena_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

bool Arena::host_visible() const {
  return source_->host_visible();
}

Arena::Arena(std::string name, Kind kind, int64_t limit_bytes, MemorySource* source)
    : name_(std::move(name)),
      kind_(kind),
      limit_bytes_(limit_bytes),
      source_(source == nullptr ? System() : source) {
  DSAT_CHECK(limit_bytes >= 0, "{}", limit_bytes);
}

Arena::~Arena() {
  DSAT_CHECK(num_live_blocks_ == 0, "{}: {} buffers outlive their arena", name_, num_live_blocks_);
  ShrinkCacheTo(0);
}

Buffer Arena::Allocate(int64_t bytes, const char* use) {
  DSAT_CHECK(bytes >= 0, "{}: {} bytes for {}", name_, bytes, use);
  const int64_t rounded = RoundUp(bytes);
  Count(rounded, use);
  Buffer buffer;
  if (kind_ == Kind::kReal && rounded > 0) {
    buffer.data_ = TakeBlock(rounded);
    if (buffer.data_ == nullptr) {
      live_bytes_ -= rounded;
      throw OutOfMemory(ErrorCode::kResourceExhausted,
                        fmt::format("{}: the system has no {} for {}: {} in use", name_,
                                    FormatBytes(rounded), use, FormatBytes(live_bytes_)));
    }
  }
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  ++num_live_blocks_;
  buffer.arena_ = this;
  buffer.bytes_ = bytes;
  return buffer;
}

void Arena::Charge(int64_t bytes, const char* use) {
  DSAT_CHECK(bytes >= 0, "{}: {} bytes for {}", name_, bytes, use);
  Count(RoundUp(bytes), use);
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

void Arena::Discharge(int64_t bytes) {
  live_bytes_ -= RoundUp(bytes);
  DSAT_CHECK(live_bytes_ >= 0, "{}: discharged more than was charged", name_);
}

void Arena::Count(int64_t bytes, const char* use) {
  if (limit_bytes_ > 0 && bytes > limit_bytes_ - live_bytes_) {
    throw OutOfMemory(
        ErrorCode::kResourceExhausted,
        fmt::format("{}: {} for {} do not fit: {} of {} in use", name_, FormatBytes(bytes), use,
                    FormatBytes(live_bytes_), FormatBytes(limit_bytes_)));
  }
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

void Arena::Release(void* data, int64_t bytes) {
  const int64_t rounded = RoundUp(bytes);
  live_bytes_ -= rounded;
  --num_live_blocks_;
  if (data == nullptr) return;
  free_blocks_[rounded].push_back(data);
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
