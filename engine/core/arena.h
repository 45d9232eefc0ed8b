// The memory of one tier, with a hard limit. Every byte is counted.
//
// On a CPU, device memory is a budget: a program can run out of it and catch the error. A counting
// arena has the same limit and the same sums but allocates nothing; predictions of a
// configuration's peak use it.
//
// On a GPU, buffers lie in segments (arena.cc), and what counts is the memory that the
// segments take from the driver. A training reserves one, in which each buffer has a place that a
// counting run has found (buffer_plan.h). A buffer that the plan does not foresee lies in free
// space of a segment, or in a new one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

class Arena;
class MemorySource;  // engine/core/memory_source.h
struct BufferPlan;   // engine/core/buffer_plan.h

// Owned bytes of an arena, 64-byte aligned, uninitialized, or a charge (Arena::Charge), which has
// no data; move-only. Must not outlive its arena.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Free(); }

  explicit operator bool() const { return arena_ != nullptr; }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // The whole buffer as elements of `dtype`.
  Tensor AsTensor(DType dtype) const { return {data_, bytes_ / BytesPerElem(dtype), dtype}; }
  void Free();

 private:
  friend class Arena;
  Arena* arena_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  static constexpr int64_t kCharge = -2;  // The place of a charge.
  // In segments, or the number of the request to a counting arena.
  int64_t place_ = -1;
};

// The configuration does not fit on a device (the limit of an arena, a GPU, NCCL), or into the
// space that offload was given. This is an outcome of a trial, and the only one of this kind: a
// shortage of anything else is another Error. what() names the use and the numbers.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// Not thread-safe.
class Arena {
 public:
  enum class Kind { kReal, kCounting };

  // `name` is for messages ("device memory"); limit_bytes 0 = no limit. Blocks come from `source`,
  // which must outlive this; nullptr: from the system.
  Arena(std::string name, Kind kind, int64_t limit_bytes, MemorySource* source = nullptr);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Sizes are rounded up to 64 bytes, and the rounded sizes count. `use` names the purpose in
  // errors. Throws OutOfMemory if more than the limit would be in use, or if the device has no
  // more, and kResourceExhausted if the host has no more. A buffer of 0 bytes is valid and has no
  // data; nor has any buffer of a counting arena.
  Buffer Allocate(int64_t bytes, const char* use);
  Buffer Allocate(DType dtype, int64_t num_elems, const char* use) {
    return Allocate(num_elems * BytesPerElem(dtype), use);
  }
  // Counts bytes that are allocated elsewhere (communication buffers), with the same limit and
  // error, as long as the returned buffer lives, which has no data.
  [[nodiscard]] Buffer Charge(int64_t bytes, const char* use);

  // A run begins: its buffers lie as `plan` says. REQUIRES: WantsPlan.
  void BeginRun(BufferPlan plan);
  // Whether buffers lie in segments, and there is none yet.
  bool WantsPlan() const;
  // A step of the run begins. The steps after the last one that a plan knows are equal to it.
  void BeginStep();
  // Where the buffers that a counting arena was asked for since it was made would lie.
  BufferPlan PlanRequests() const;

  Kind kind() const { return kind_; }
  // Whether the host may look into its buffers.
  bool host_visible() const;
  // The bytes of live buffers and of charges.
  int64_t live_bytes() const { return live_bytes_; }
  int64_t charged_bytes() const { return charged_bytes_; }
  // The bytes that the limit applies to: the live bytes, or on a GPU segments and charges.
  int64_t used_bytes() const;
  // The most that was in use.
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t limit_bytes() const { return limit_bytes_; }
  void ResetPeak() { peak_bytes_ = used_bytes(); }

 private:
  friend class Buffer;
  struct Places;
  // Counts `bytes` (rounded) or throws OutOfMemory.
  void Count(int64_t bytes, const char* use);
  [[noreturn]] void ThrowDoNotFit(int64_t bytes, const char* use) const;
  [[noreturn]] void ThrowSystemHasNone(int64_t bytes, const char* use) const;
  int64_t MostReserved() const;
  void TakeFromPool(Buffer& buffer, int64_t bytes, const char* use);
  // A block of `bytes` (rounded) from the free lists or the source; nullptr if neither has one.
  void* TakeBlock(int64_t bytes);
  void Release(const Buffer& buffer);
  // Gives free blocks back to the source, large ones first, until at most `bytes` are kept.
  void ShrinkCacheTo(int64_t bytes);

  std::string name_;
  Kind kind_;
  int64_t limit_bytes_;
  MemorySource* source_;
  std::unique_ptr<Places> places_;
  int64_t live_bytes_ = 0;
  int64_t charged_bytes_ = 0;  // The part of the live bytes that is charged.
  int64_t peak_bytes_ = 0;
  // Freed blocks by size. The same shapes recur in every step, so that a block is seldom unmapped.
  // Live and free bytes together stay below the limit, or below twice the peak without a limit.
  std::map<int64_t, std::vector<void*>> free_blocks_;
  int64_t free_bytes_ = 0;
  int64_t num_live_blocks_ = 0;
};

}  // namespace dsat::engine
