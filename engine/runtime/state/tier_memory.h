// The memory and kernels of one rank, for the device and the host tier.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/backend/device.h"
#include "engine/backend/kernels.h"
#include "engine/core/arena.h"
#include "engine/core/memory_source.h"
#include "engine/plan/placement.h"

namespace dsat::engine {

// Memory and kernels of the tiers that can be computed on.
struct Memory {
  Arena& device;
  Arena& host;
  Kernels& kernels;
  Kernels& host_kernels;

  Arena& arena(Tier tier) const { return tier == Tier::kDevice ? device : host; }
  Kernels& kernels_of(Tier tier) const { return tier == Tier::kDevice ? kernels : host_kernels; }
};

// Owns the arenas and kernels that a device makes for one rank.
class TierMemory {
 public:
  // Hard limits in bytes; 0: none. `device` must outlive this. What its kernels keep for themselves
  // counts as device memory.
  TierMemory(Device& device, int64_t device_bytes, int64_t host_bytes)
      : kernels_(device.MakeKernels()),
        host_kernels_(device.MakeHostKernels()),
        device_("device memory", Arena::Kind::kReal, device_bytes, &device.memory()),
        host_("host memory", Arena::Kind::kReal, host_bytes, &device.host_memory()),
        workspace_(device_.Charge(kernels_->WorkspaceBytes(), "the kernels' workspace")) {}
  TierMemory(const TierMemory&) = delete;
  TierMemory& operator=(const TierMemory&) = delete;

  // Borrowed from this.
  Memory view() { return {device_, host_, *kernels_, *host_kernels_}; }
  Kernels& kernels() { return *kernels_; }
  Kernels& host_kernels() { return *host_kernels_; }
  Arena& device() { return device_; }
  const Arena& device() const { return device_; }
  Arena& host() { return host_; }

 private:
  const std::unique_ptr<Kernels> kernels_;
  const std::unique_ptr<Kernels> host_kernels_;
  Arena device_;
  Arena host_;
  const Buffer workspace_;
};

}  // namespace dsat::engine
