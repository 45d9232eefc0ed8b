// Limits the allocations of the programs that run the targets.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "tests/fuzz/one_input.h"

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return bytes <= dsat::fuzz::kMostBytes ? std::malloc(std::max<size_t>(bytes, 1)) : nullptr;
}
// An allocation above the limit throws what no target may throw.
void* operator new(size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
