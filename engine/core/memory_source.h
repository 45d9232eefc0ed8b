// The source of an arena's blocks: the system, or a device.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace dsat::engine {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // `bytes` (a positive multiple of 64), aligned to 64, contents undefined; nullptr if there is no
  // more.
  virtual void* Allocate(int64_t bytes) = 0;
  // REQUIRES: a block of Allocate, of this size.
  virtual void Free(void* block, int64_t bytes) = 0;
  // Whether the host may access blocks. If not, only kernels, collectives and copies may.
  virtual bool host_visible() const = 0;
  // The unit in which the device's driver gives memory to a process; 0 if a block takes no more
  // than its own bytes and is cheap to allocate.
  virtual int64_t granule_bytes() const { return 0; }
  // Whether `data` points into memory of this kind. Thread-safe.
  virtual bool Holds(const void* data) = 0;
  // Asks for full speed of copies between such blocks and [data, data + bytes) of this process's
  // memory: a GPU wants these pages pinned. Returns false if the pages cannot be pinned; copies
  // work then as well. Pinned pages, and no others, are unpinned, before they are unmapped.
  virtual bool PinHost(void* /*data*/, int64_t /*bytes*/) { return true; }
  virtual void UnpinHost(void* /*data*/) {}
};

// This process's memory.
class SystemMemory final : public MemorySource {
 public:
  void* Allocate(int64_t bytes) override;
  void Free(void* block, int64_t bytes) override;
  bool host_visible() const override { return true; }
  bool Holds(const void*) override { return true; }
};

// Blocks of a preferred source, or of this process's own memory where that source refuses them.
// Thread-safe.
class PreferredMemory final : public MemorySource {
 public:
  // `what` names the preferred memory in the warning about the first refusal, the only one.
  PreferredMemory(std::unique_ptr<MemorySource> preferred, std::string what);
  void* Allocate(int64_t bytes) override;
  void Free(void* block, int64_t bytes) override;
  bool host_visible() const override { return true; }
  bool Holds(const void*) override { return true; }

 private:
  const std::unique_ptr<MemorySource> preferred_;
  const std::string what_;
  SystemMemory system_;
  std::mutex mutex_;         // Guards the next two.
  std::set<void*> refused_;  // Blocks of system_.
  bool has_warned_ = false;
};

}  // namespace dsat::engine
