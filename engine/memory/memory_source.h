// Where an arena's blocks come from: the system, or a device.
#ifndef DSAT_ENGINE_MEMORY_MEMORY_SOURCE_H_
#define DSAT_ENGINE_MEMORY_MEMORY_SOURCE_H_

#include <cstdint>

namespace dsat::engine {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // `bytes` (a positive multiple of 64), aligned to 64, contents undefined; nullptr if there is no
  // more.
  virtual void* Allocate(int64_t bytes) = 0;
  // REQUIRES: a block of Allocate, of this size.
  virtual void Free(void* block, int64_t bytes) = 0;
  // Whether the host may look into blocks. If not, only kernels, collectives and copies may.
  virtual bool host_visible() const = 0;
  // Whether `data` points into memory of this kind. Thread-safe.
  virtual bool Holds(const void* data) = 0;
};

// This process's memory.
class SystemMemory final : public MemorySource {
 public:
  void* Allocate(int64_t bytes) override;
  void Free(void* block, int64_t bytes) override;
  bool host_visible() const override { return true; }
  bool Holds(const void*) override { return true; }
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MEMORY_MEMORY_SOURCE_H_
