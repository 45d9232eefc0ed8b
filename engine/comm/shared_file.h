// The memory file that the ranks of one host share, and the allocation of its pages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace dsat::engine {

// Move-only; unmaps the memory when it is destroyed.
class Mapping {
 public:
  Mapping() = default;
  // Maps bytes [offset, offset + bytes) of `fd`, shared and writable; zeroed private memory if `fd`
  // is -1. Offset and bytes of a file are multiples of the page size. Throws kResourceExhausted if
  // the address space has no room.
  Mapping(int fd, int64_t offset, int64_t bytes);
  static Mapping Private(int64_t bytes) { return Mapping(-1, 0, bytes); }

  char* data() const { return data_.get(); }
  int64_t bytes() const { return data_.get_deleter().bytes; }

 private:
  struct Unmap {
    int64_t bytes;  // 0 without memory.
    void operator()(char* data) const;
  };

  std::unique_ptr<char, Unmap> data_;
};

// The smallest multiple of the page size that is at least `bytes`.
int64_t RoundUpToPage(int64_t bytes);

// One rank's view. The first `head_bytes` have a fixed use; any rank may reserve ranges of the
// rest. Reserve and Release may be called by several threads.
class SharedFile {
 public:
  // `fd` is a memory file (memfd), initially empty; it is duplicated. `head_bytes` is the same on
  // every rank and a multiple of the page size. Throws if the file cannot grow.
  SharedFile(int fd, int64_t head_bytes);

  // Reserves a range of zeroed pages. The memory is allocated at once, so that a lack of memory is
  // an error here and not a SIGBUS later. Returns the offset, or -errno. `bytes` is a multiple of
  // the page size.
  int64_t Reserve(int64_t bytes);
  // The result of Reserve if it is an offset. Throws what a negative one means for `what`:
  // kResourceExhausted for a lack of memory, kFailedPrecondition for a limit of file sizes, with
  // which no configuration can run.
  static int64_t OffsetOf(const std::string& what, int64_t result);
  // Releases the pages of a range, which no rank may access afterwards.
  void Release(int64_t offset, int64_t bytes);
  Mapping Map(int64_t offset, int64_t bytes) const { return Mapping(file_.get(), offset, bytes); }
  // The offset in the head after the part that this object uses.
  static int64_t HeadOffset();

 private:
  UniqueFd file_;
  int64_t head_end_;
  Mapping mapping_;
  std::atomic<int64_t>* given_bytes_;  // In the file; initially zero.
};

}  // namespace dsat::engine
