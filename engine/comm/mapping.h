// An owned range of mapped memory.
#pragma once

#include <cstdint>
#include <memory>

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

  char* data() const { return data_.get(); }
  int64_t bytes() const { return data_.get_deleter().bytes; }

 private:
  struct Unmap {
    int64_t bytes;  // 0 without memory.
    void operator()(char* data) const;
  };

  Mapping(int fd, int64_t offset, int64_t bytes, int flags);

  std::unique_ptr<char, Unmap> data_;
};

// The smallest multiple of the page size that is at least `bytes`.
int64_t RoundUpToPage(int64_t bytes);

}  // namespace dsat::engine
