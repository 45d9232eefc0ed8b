// The processor as a device: host memory, and groups over it as they are.
#include <unistd.h>

#include "engine/backend/device.h"
#include "engine/backend/kernels.h"
#include "engine/comm/process_group.h"
#include "engine/core/device_kind.h"
#include "engine/core/memory_source.h"

namespace dsat::engine {

namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int num_threads) : num_threads_(num_threads) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "cpu"; }
  std::unique_ptr<Kernels> MakeKernels() override { return MakeCpuKernels(num_threads_); }
  std::unique_ptr<Kernels> MakeHostKernels() override { return MakeCpuKernels(num_threads_); }
  MemorySource& memory() override { return memory_; }
  MemorySource& host_memory() override { return memory_; }
  int64_t MemoryBytes(int local_world_size) const override {
    return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / local_world_size;
  }
  std::unique_ptr<ProcessGroup> MakeGroup(std::unique_ptr<ProcessGroup> host) override {
    return host;
  }

 private:
  int num_threads_;
  SystemMemory memory_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(int num_threads) {
  return std::make_unique<CpuDevice>(num_threads);
}

}  // namespace dsat::engine
