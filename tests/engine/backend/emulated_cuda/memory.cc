// The emulated GPU's memory.
#include "tests/engine/backend/emulated_cuda/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace emulated_cuda {
namespace {

// The range of addresses; a page costs when it is used.
constexpr size_t kAddressBytes = size_t{1} << 43;
constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 256;
// The part of a block that is filled: tests compute on smaller ones.
constexpr size_t kFilledBytes = size_t{1} << 20;

void* Pointer(uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}
uintptr_t Address(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}
size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The block that `data` is in, or the end.
template <typename Blocks>
auto Find(const Blocks& blocks, const void* data) {
  auto found = blocks.upper_bound(Address(data));
  if (found == blocks.begin()) return blocks.end();
  --found;
  return Address(data) < found->first + found->second ? found : blocks.end();
}
template <typename Blocks>
bool HoldsIn(const Blocks& blocks, const void* data, size_t bytes) {
  const auto found = Find(blocks, data);
  return found != blocks.end() && Address(data) + bytes <= found->first + found->second;
}

}  // namespace

// It outlives whatever gives its memory back when the program ends.
Memory& Memory::Get() {
  static auto& memory = *new Memory;
  return memory;
}

Memory::Memory() : nothing_(memfd_create("nothing", 0)) {
  void* data =
      mmap(nullptr, kAddressBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  DSAT_CHECK(data != MAP_FAILED && nothing_ >= 0);
  begin_ = end_ = Address(data);
}

void* Memory::Allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > limit_ - used_) return nullptr;
  const size_t pages = RoundUp(bytes, kPageBytes);
  uintptr_t first = end_;
  if (const auto found = free_.find(pages); found != free_.end()) {
    first = found->second;
    free_.erase(found);
  } else {
    end_ += pages + kPageBytes;
    DSAT_CHECK(end_ < begin_ + kAddressBytes);
    Guard(first + pages, kPageBytes);
  }
  MakePages(first, pages);
  const uintptr_t block = first + pages - RoundUp(bytes, kAlignment);
  blocks_[block] = bytes;
  used_ += bytes;
  return Pointer(block);
}

bool Memory::Free(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(Address(data));
  if (found == blocks_.end()) return false;
  const size_t pages = RoundUp(found->second, kPageBytes);
  const uintptr_t first = found->first + RoundUp(found->second, kAlignment) - pages;
  used_ -= found->second;
  blocks_.erase(found);
  Guard(first, pages);
  free_.emplace(pages, first);
  return true;
}

// A file without contents: rights do not help.
void Memory::Guard(uintptr_t begin, size_t bytes) {
  DSAT_CHECK(mmap(Pointer(begin), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, nothing_, 0) !=
             MAP_FAILED);
}

void Memory::MakePages(uintptr_t begin, size_t bytes) {
  DSAT_CHECK(mmap(Pointer(begin), bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED);
  std::memset(Pointer(begin), 0xFF, std::min(bytes, kFilledBytes));
  if (num_open_ == 0) DSAT_CHECK(mprotect(Pointer(begin), bytes, PROT_NONE) == 0);
}

bool Memory::Holds(const void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  return HoldsIn(blocks_, data, bytes);
}

bool Memory::Owns(const void* data) const {
  return Address(data) >= begin_ && Address(data) < begin_ + kAddressBytes;
}

size_t Memory::used() {
  const std::lock_guard lock(mutex_);
  return used_;
}

void Memory::Pin(void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  pinned_[Address(data)] = bytes;
}

size_t Memory::Unpin(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(Address(data));
  if (found == pinned_.end()) return 0;
  const size_t bytes = found->second;
  pinned_.erase(found);
  return bytes;
}

bool Memory::IsPinned(const void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  return HoldsIn(pinned_, data, bytes);
}

void Memory::Protect(bool open) {
  const std::lock_guard lock(mutex_);
  num_open_ += open ? 1 : -1;
  if (num_open_ != (open ? 1 : 0) || end_ == begin_) return;
  const int rights = open ? PROT_READ | PROT_WRITE : PROT_NONE;
  DSAT_CHECK(mprotect(Pointer(begin_), end_ - begin_, rights) == 0);
}

}  // namespace emulated_cuda
