// Workspace of one kernel call that the caller does not provide.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace dsat::engine {

// 64-byte aligned memory that grows to the largest request and is kept, so that nothing is
// allocated after the first step of training. Contents do not survive a call of Get. Not
// thread-safe.
class Scratch {
 public:
  // At least `bytes` bytes, uninitialized.
  void* Get(int64_t bytes) {
    if (bytes > bytes_) {
      const int64_t rounded = (bytes + 63) / 64 * 64;
      data_.reset();
      data_.reset(std::aligned_alloc(64, static_cast<size_t>(rounded)));
      if (data_ == nullptr) throw std::bad_alloc();
      bytes_ = rounded;
    }
    return data_.get();
  }
  template <typename T>
  T* GetArray(int64_t count) {
    return static_cast<T*>(Get(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace dsat::engine
