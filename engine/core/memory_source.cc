// This process's memory.
#include "engine/core/memory_source.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#include "base/log.h"

namespace dsat::engine {
namespace {

constexpr size_t kAlignment = 64;
// Blocks from here on are mapped one by one: they return to the system when they are freed, and
// huge pages save most of the page faults of the first touch.
constexpr int64_t kMapBytes = int64_t{2} << 20;

}  // namespace

void* SystemMemory::Allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (bytes < kMapBytes) return std::aligned_alloc(kAlignment, size);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, size, MADV_HUGEPAGE);  // Advice: a kernel without huge pages may refuse it.
  return data;
}

void SystemMemory::Free(void* block, int64_t bytes) {
  if (bytes < kMapBytes) {
    std::free(block);
  } else {
    munmap(block, static_cast<size_t>(bytes));
  }
}

PreferredMemory::PreferredMemory(std::unique_ptr<MemorySource> preferred, std::string what)
    : preferred_(std::move(preferred)), what_(std::move(what)) {}

void* PreferredMemory::Allocate(int64_t bytes) {
  if (void* block = preferred_->Allocate(bytes); block != nullptr) return block;
  void* block = system_.Allocate(bytes);
  if (block == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  refused_.insert(block);
  if (!std::exchange(has_warned_, true))
    Log(LogLevel::kWarn, "no more " + what_ + ": copies will be slower", {{"bytes", bytes}});
  return block;
}

void PreferredMemory::Free(void* block, int64_t bytes) {
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    refused = refused_.erase(block) > 0;
  }
  refused ? system_.Free(block, bytes) : preferred_->Free(block, bytes);
}

}  // namespace dsat::engine
