// The emulated GPU's memory, and the host memory that it knows.
//
// The host cannot touch device memory: its pages have no access rights except while an Access
// lives. Nobody can touch the page behind a block, nor a block that is free. Blocks end where their
// last page does, so that a kernel that runs past the end of one (rounded up to 256 bytes) crashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace emulated_cuda {

class Memory {
 public:
  static Memory& Get();

  // The first MiB is filled with what is no number in any type; nullptr if the limit is reached.
  void* Allocate(size_t bytes);
  // REQUIRES: nothing under way uses the block. False if it is none of Allocate's.
  bool Free(void* data);
  // Whether all of it is in one block.
  bool Holds(const void* data, size_t bytes = 1);
  // Whether it is an address of the GPU's, be it in use or not.
  bool Owns(const void* data) const;

  void set_limit(size_t bytes) { limit_ = bytes; }
  size_t limit() const { return limit_; }
  size_t used();

  // Host memory that the GPU reads and writes by itself.
  void Pin(void* data, size_t bytes);
  // Bytes; 0 if it is not the beginning of such memory.
  size_t Unpin(void* data);
  bool IsPinned(const void* data, size_t bytes);

  class Access {
   public:
    Access() { Get().Protect(true); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    ~Access() { Get().Protect(false); }
  };

 private:
  using Blocks = std::map<uintptr_t, size_t>;  // Bytes by address.

  Memory();
  void Protect(bool open);
  void Guard(uintptr_t begin, size_t bytes);
  void MakePages(uintptr_t begin, size_t bytes);

  std::mutex mutex_;
  uintptr_t begin_ = 0, end_ = 0;  // The addresses in use so far.
  int nothing_ = -1;               // An empty file: whoever touches its pages crashes.
  Blocks blocks_, pinned_;
  std::multimap<size_t, uintptr_t> free_;  // First page by bytes of pages.
  size_t limit_ = size_t{8} << 30;
  size_t used_ = 0;
  int num_open_ = 0;
};

}  // namespace emulated_cuda
