// The device that a rank of a test computes on.
#include "tests/engine/backend/test_device.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/backend/cuda/nccl_group.h"
#include "engine/backend/cuda/plugin.h"
#include "engine/core/device_kind.h"
#include "tests/engine/backend/guarded_device.h"

namespace dsat::engine {

namespace {

std::string TestDeviceName() {
  const char* name = std::getenv("DSAT_TEST_DEVICE");
  return name == nullptr ? "cpu" : name;
}

#ifdef DSAT_EMULATED_CUDA

// The second of its GPUs: a thread that has chosen none is on the first.
std::unique_ptr<Device> OpenEmulatedCuda() {
  return OpenCudaDevice(OpenCudaPlugin(DSAT_EMULATED_CUDA), /*local_rank=*/1, /*num_threads=*/1);
}

// As if every rank had a GPU of its own.
class EmulatedNccl final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "emulated NCCL"; }
  std::unique_ptr<Kernels> MakeKernels() override { return gpu_->MakeKernels(); }
  std::unique_ptr<Kernels> MakeHostKernels() override { return gpu_->MakeHostKernels(); }
  MemorySource& memory() override { return gpu_->memory(); }
  MemorySource& host_memory() override { return gpu_->host_memory(); }
  int64_t MemoryBytes(int local_world_size) const override {
    return gpu_->MemoryBytes(local_world_size);
  }
  std::unique_ptr<ProcessGroup> MakeGroup(std::unique_ptr<ProcessGroup> host) override {
    if (host->size() == 1) return gpu_->MakeGroup(std::move(host));
    NcclDevice device = {.api = {}, .kernels = gpu_->MakeKernels()};
    const std::string problem = nccl::Load(device.api, DSAT_EMULATED_NCCL);
    DSAT_CHECK(problem.empty(), "{}", problem);
    return MakeNcclGroup(std::move(host), gpu_->memory(), device);
  }

 private:
  std::unique_ptr<Device> gpu_ = OpenEmulatedCuda();
};

#endif

}  // namespace

std::unique_ptr<Device> MakeTestDevice(const std::string& name) {
  if (name == "guarded") return MakeGuardedDevice();
#ifdef DSAT_EMULATED_CUDA
  if (name == "emulated-cuda") return OpenEmulatedCuda();
  if (name == "emulated-nccl") return std::make_unique<EmulatedNccl>();
#endif
  return OpenDevice(name, /*local_rank=*/0, /*num_threads=*/1);
}

std::unique_ptr<Device> MakeTestDevice() {
  return MakeTestDevice(TestDeviceName());
}

DeviceKind TestDeviceKind() {
  const std::string name = TestDeviceName();
  const bool cuda = name.ends_with("cuda") || name == "emulated-nccl";
  return cuda ? DeviceKind::kCuda : DeviceKind::kCpu;
}

std::unique_ptr<Kernels> MakeTestKernels() {
  if (TestDeviceName() == "cpu") return MakeCpuKernels(3);
  return MakeRoundTripKernels(MakeTestDevice());
}

TestDevice::TestDevice(std::unique_ptr<Device> device, ProcessGroup& group, int64_t device_bytes,
                       int64_t host_bytes)
    : device_(std::move(device)),
      group_(
          device_->MakeGroup(group.Split(std::vector<int>(static_cast<size_t>(group.size()), 0)))),
      memory_(*device_, device_bytes, host_bytes) {}

}  // namespace dsat::engine
