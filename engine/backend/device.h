// A device that an engine computes on: kernels, their memory, and collectives over that memory.
//
// A program opens a device once (OpenDevice) and makes the parts of each engine with it. What a
// device makes must not outlive the device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace dsat::engine {

class Kernels;       // engine/backend/kernels.h
class MemorySource;  // engine/core/memory_source.h
class ProcessGroup;  // engine/comm/process_group.h
enum class DeviceKind : uint8_t;

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;  // For people: "cpu", "cuda:0 (NVIDIA H200)".
  // One per rank, not thread-safe. Their tensors are buffers of an arena over memory(), and
  // communication memory of MakeGroup's group.
  virtual std::unique_ptr<Kernels> MakeKernels() = 0;
  // Kernels for state that is stored and updated in host memory.
  virtual std::unique_ptr<Kernels> MakeHostKernels() = 0;
  virtual MemorySource& memory() = 0;
  // Host memory for data that is copied to and from the device.
  virtual MemorySource& host_memory() = 0;
  // The bytes of the device's memory that one of `local_world_size` ranks on this machine may use
  // besides what their kernels and communicators have taken. REQUIRES: none of them has a buffer.
  virtual int64_t MemoryBytes(int local_world_size) const = 0;
  // Makes a group over this device's memory from `host`, a group of the same ranks over host
  // memory.
  virtual std::unique_ptr<ProcessGroup> MakeGroup(std::unique_ptr<ProcessGroup> host) = 0;
};

// This machine's processor; its memory is the host's. `num_threads` compute threads per rank.
std::unique_ptr<Device> MakeCpuDevice(int num_threads);
// `name` is "cpu", "cuda" or "auto", which is a GPU if this machine has a usable one and else the
// processor. Ranks get the GPUs in turn by `local_rank`. Throws kInvalidArgument for another name,
// and kUnavailable with the reason if `name` is "cuda" and there is no usable GPU.
std::unique_ptr<Device> OpenDevice(const std::string& name, int local_rank, int num_threads);

}  // namespace dsat::engine
