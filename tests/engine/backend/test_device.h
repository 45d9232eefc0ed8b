// The device that a rank of a test computes on: the CPU, or what DSAT_TEST_DEVICE names, so that
// whole suites run once more on another device.
#pragma once

#include <memory>
#include <string>

#include "engine/backend/device.h"
#include "engine/backend/kernels.h"
#include "engine/comm/process_group.h"
#include "engine/core/device_kind.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/state/tier_memory.h"

namespace dsat::engine {

// "cpu" (or nothing), "guarded" (guarded_device.h), "emulated-cuda" (the CUDA backend on the CPU,
// where it is built), "emulated-nccl" (the same, as if every rank had a GPU) or "cuda".
std::unique_ptr<Device> MakeTestDevice(const std::string& name);
// By DSAT_TEST_DEVICE; and what its kernels are, without making it.
std::unique_ptr<Device> MakeTestDevice();
DeviceKind TestDeviceKind();

// The device's kernels, for tensors in host memory: each call takes its operands there and back.
std::unique_ptr<Kernels> MakeRoundTripKernels(std::unique_ptr<Device> device);
// The kernels of DSAT_TEST_DEVICE; the CPU's are used as they are, on three threads.
std::unique_ptr<Kernels> MakeTestKernels();

class TestDevice {
 public:
  // A collective call over `group`, the host's. Limits in bytes; 0: none.
  explicit TestDevice(ProcessGroup& group, int64_t device_bytes = 0, int64_t host_bytes = 0)
      : TestDevice(MakeTestDevice(), group, device_bytes, host_bytes) {}
  TestDevice(std::unique_ptr<Device> device, ProcessGroup& group, int64_t device_bytes = 0,
             int64_t host_bytes = 0);

  Resources For(const Model& model, const Dataset* dataset, int64_t seq_len) {
    return {model, *group_, memory_.view(), dataset, seq_len};
  }
  TierMemory& memory() { return memory_; }
  ProcessGroup& group() { return *group_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProcessGroup> group_;
  TierMemory memory_;
};

}  // namespace dsat::engine
