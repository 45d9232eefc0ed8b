// The CPU as a device whose memory the host cannot see: proof that only kernels, collectives and
// explicit copies touch device memory.
//
// Its pages, those of communication buffers included, have no access rights except while one of
// these runs; whoever else looks at them crashes. Kernels refuse (abort) what is not device memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "engine/backend/device.h"
#include "engine/backend/kernels.h"
#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {

// One range of pages, which are open while an Access lives. Thread-safe: collectives run beside
// kernels.
class GuardedMemory final : public MemorySource {
 public:
  class Access {
   public:
    explicit Access(GuardedMemory& memory) : memory_(memory) { memory.Enter(); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    ~Access() { memory_.Leave(); }

   private:
    GuardedMemory& memory_;
  };

  GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() override;

  // Filled with what is no number in any type.
  void* Allocate(int64_t bytes) override;
  void Free(void* block, int64_t bytes) override;
  bool host_visible() const override { return false; }
  bool Holds(const void* data) override { return Holds(data, 1); }
  bool Holds(const void* data, int64_t bytes);

 private:
  void Enter();
  void Leave();
  void Protect(int rights);

  std::mutex mutex_;
  char* data_;
  int64_t used_bytes_ = 0;
  std::multimap<int64_t, void*> free_;  // By size.
  int num_open_ = 0;
};

// Makes a MakeCpuDevice(1) that is guarded.
std::unique_ptr<Device> MakeGuardedDevice();

// Copies and kernels behind the guard, which must outlive them.
std::unique_ptr<Stream> MakeGuardedStream(GuardedMemory& memory);
std::unique_ptr<Kernels> MakeGuardedKernels(std::unique_ptr<Kernels> kernels,
                                            GuardedMemory& memory);

}  // namespace dsat::engine
