// What a rank of a test computes on.
#include "tests/engine/test_device.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/open_device.h"
#include "tests/engine/guarded_device.h"

namespace dsat::engine {

namespace {

std::string TestDeviceName() {
  const char* name = std::getenv("DSAT_TEST_DEVICE");
  return name == nullptr ? "cpu" : name;
}

}  // namespace

std::unique_ptr<Device> MakeTestDevice(const std::string& name) {
  if (name == "guarded") return MakeGuardedDevice();
#ifdef DSAT_EMULATED_CUDA
  if (name == "emulated-cuda") {
    return OpenCudaDevice(OpenCudaPlugin(DSAT_EMULATED_CUDA), /*local_rank=*/0, /*num_threads=*/1);
  }
#endif
  return OpenDevice(name, /*local_rank=*/0, /*num_threads=*/1);
}

std::unique_ptr<Device> MakeTestDevice() {
  return MakeTestDevice(TestDeviceName());
}

DeviceKind TestDeviceKind() {
  return TestDeviceName().ends_with("cuda") ? DeviceKind::kCuda : DeviceKind::kCpu;
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
