// How fast a device is: what is measured at all, and in how much memory.
#include "engine/backend/device_speed.h"

#include <gtest/gtest.h>

#include "tests/engine/backend/test_device.h"

namespace dsat::engine {
namespace {

class DeviceSpeedTest : public testing::TestWithParam<DType> {
 protected:
  const std::unique_ptr<Device> device_ = MakeTestDevice();
  const std::unique_ptr<Kernels> kernels_ = device_->MakeKernels();
};

TEST_P(DeviceSpeedTest, IsMeasuredInTheMemoryThatIsLeftWhichIsFreeAfterwards) {
  Arena memory("device memory", Arena::Kind::kReal, 8 << 20, &device_->memory());
  Arena host("host memory", Arena::Kind::kReal, 2 << 20, &device_->host_memory());
  const Buffer used = memory.Allocate(4 << 20, "parameters");
  const DeviceSpeed speed = MeasureDeviceSpeed(*kernels_, memory, host, GetParam());
  EXPECT_GT(speed.matmul_flops, 1e3);
  EXPECT_GT(speed.copy, 1e3);
  EXPECT_EQ(speed.to_device > 0, !memory.host_visible());
  EXPECT_EQ(speed.to_host > 0, !memory.host_visible());
  EXPECT_EQ(memory.live_bytes(), 4 << 20);
  EXPECT_EQ(host.live_bytes(), 0);
  EXPECT_GE(memory.peak_bytes(), 6 << 20);  // Copies of 2 MiB.
}

TEST_P(DeviceSpeedTest, IsUnknownWithoutMemory) {
  Arena memory("device memory", Arena::Kind::kReal, 64, &device_->memory());
  Arena host("host memory", Arena::Kind::kReal, 0, &device_->host_memory());
  const DeviceSpeed speed = MeasureDeviceSpeed(*kernels_, memory, host, GetParam());
  EXPECT_EQ(speed.matmul_flops, 0);
  EXPECT_EQ(speed.copy, 0);
}

INSTANTIATE_TEST_SUITE_P(Precisions, DeviceSpeedTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16));

}  // namespace
}  // namespace dsat::engine
