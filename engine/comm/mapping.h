// An owned range of mapped memory.
#pragma once

#include <cstdint>

namespace dsat::engine {

// Move-only; unmaps the memory when it is destroyed.
class Mapping {
 public:
  Mapping() = default;
  // Maps bytes [offset, offset + bytes) of `fd`, shared and writable. Offset and bytes are
  // multiples of the page size. Throws kResourceExhausted if the address space has no room.
  Mapping(int fd, int64_t offset, int64_t bytes);
  // Zeroed private memory. Throws as above.
  static Mapping Private(int64_t bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Mapping(int fd, int64_t offset, int64_t bytes, int flags);

  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The smallest multiple of the page size that is at least `bytes`.
int64_t RoundUpToPage(int64_t bytes);

}  // namespace dsat::engine
