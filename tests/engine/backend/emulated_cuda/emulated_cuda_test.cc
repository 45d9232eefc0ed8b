// The emulator finds what it is there to find: errors of kernels, and of those who call them, end
// the program or give wrong numbers, each time.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/engine/backend/emulated_cuda/test_kernels.h"

namespace emulated_cuda {
namespace {

class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values) : size_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(float), cudaMemcpyHostToDevice),
              cudaSuccess);
    cudaDeviceSynchronize();
  }
  explicit DeviceFloats(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(float)), cudaSuccess);
  }
  DeviceFloats(size_t size, float value) : DeviceFloats(std::vector<float>(size, value)) {}
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  ~DeviceFloats() { cudaFree(data_); }

  float* data() const { return static_cast<float*>(data_); }
  // After the work of all streams that the legacy one waits for.
  std::vector<float> Values() const {
    std::vector<float> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(float), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

std::vector<float> Ascending() {
  std::vector<float> values(64);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

TEST(EmulatedCudaTest, ABarrierLetsThreadsSeeEachOthersSharedMemory) {
  const DeviceFloats from(Ascending()), to(64);
  LaunchReverse(to.data(), from.data(), /*with_barrier=*/true);
  const std::vector<float> expected = Ascending();
  EXPECT_EQ(to.Values(), std::vector<float>(expected.rbegin(), expected.rend()));
}

TEST(EmulatedCudaTest, WithoutABarrierTheyDoNotInWhicheverOrderTheyRun) {
  const DeviceFloats from(Ascending()), to(64);
  for (int launch = 0; launch < 2; ++launch) {
    LaunchReverse(to.data(), from.data(), /*with_barrier=*/false);
    const std::vector<float> values = to.Values();
    EXPECT_EQ(std::count_if(values.begin(), values.end(), [](float x) { return std::isnan(x); }),
              32);
  }
}

TEST(EmulatedCudaTest, SharedAndDeviceMemoryThatNobodyWroteAreNoNumbers) {
  const DeviceFloats fresh(2), to(2, 1.0F);
  EXPECT_TRUE(std::isnan(fresh.Values()[1]));
  LaunchReadShared(to.data());
  EXPECT_TRUE(std::isnan(to.Values()[0]) && std::isnan(to.Values()[1]));
}

TEST(EmulatedCudaTest, LanesOfAWarpExchangeNumbers) {
  const DeviceFloats from(Ascending()), to(64);
  LaunchWarpSum(to.data(), from.data());
  for (size_t i = 0; i < 64; ++i)
    EXPECT_EQ(to.Values()[i], i < 32 ? 496 : 1520);
}

TEST(EmulatedCudaTest, ABarrierThatNotAllReachEndsTheProgramNamingItsLine) {
  const auto run = [](bool returns) {
    LaunchHalfWaits(returns);
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(run(true), "wait at different places(.|\n)*test_kernels.cu:[0-9]+(.|\n)*returned");
  EXPECT_DEATH(run(false), "test_kernels.cu(.|\n)*test_kernels.cu");
}

TEST(EmulatedCudaTest, TheHostCannotTouchDeviceMemory) {
  const DeviceFloats numbers(1, 1.0F);
  numbers.Values();
  EXPECT_DEATH(*static_cast<volatile float*>(numbers.data()) = 2, "");
}

TEST(EmulatedCudaTest, KernelsCannotTouchWhatIsNotTheirs) {
  const DeviceFloats numbers(64);
  const auto write = [&](float* data, int i) {
    LaunchWriteAt(data, i);
    cudaDeviceSynchronize();
  };
  write(numbers.data(), 63);
  EXPECT_DEATH(write(numbers.data(), 64), "");
  float* const freed = DeviceFloats(64).data();
  EXPECT_DEATH(write(freed, 0), "");
  float on_host = 0;
  EXPECT_DEATH(write(&on_host, 0), "argument 0 of a kernel points into host memory");
  EXPECT_DEATH(
      {
        LaunchOverrunShared();
        cudaDeviceSynchronize();
      },
      "");
}

TEST(EmulatedCudaTest, WorkIsDoneWhenSomebodyWaitsForItAndNotBefore) {
  const DeviceFloats from(1, 1.0F), to(1, 0.0F);
  const cudaStream_t stream = NewStream();
  LaunchAddOne(to.data(), from.data(), stream);
  EXPECT_EQ(to.Values()[0], 0);  // The legacy stream does not wait for one that does not block.
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(to.Values()[0], 2);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(EmulatedCudaTest, PinnedMemoryIsReadWhenTheCopyIsDonePageableMemoryWhenItIsAskedFor) {
  const DeviceFloats to(1, 0.0F);
  const cudaStream_t stream = NewStream();
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(float)), cudaSuccess);
  float pageable = 1;
  for (float* const from : {static_cast<float*>(pinned), &pageable}) {
    *from = 1;
    cudaMemcpyAsync(to.data(), from, sizeof(float), cudaMemcpyHostToDevice, stream);
    *from = 5;
    cudaStreamSynchronize(stream);
    EXPECT_EQ(to.Values()[0], from == pinned ? 5 : 1);
  }
  cudaFreeHost(pinned);
  cudaStreamDestroy(stream);
}

TEST(EmulatedCudaTest, AnEventPutsTheWorkOfAStreamAfterThatOfAnother) {
  for (const bool with_event : {false, true}) {
    const DeviceFloats first(1, 1.0F), second(1, 0.0F), third(1, 0.0F);
    const cudaStream_t a = NewStream(), b = NewStream();
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    LaunchAddOne(second.data(), first.data(), a);
    cudaEventRecord(event, a);
    if (with_event) cudaStreamWaitEvent(b, event);
    LaunchAddOne(third.data(), second.data(), b);
    cudaStreamSynchronize(b);
    EXPECT_EQ(third.Values()[0], with_event ? 3 : 1);
    cudaEventDestroy(event);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
  }
}

TEST(EmulatedCudaTest, ALaunchThatAGpuRefusesIsRefused) {
  EXPECT_EQ(LaunchWithShared(49152, /*allowed=*/false), cudaSuccess);
  EXPECT_EQ(LaunchWithShared(49153, /*allowed=*/false), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchWithShared(166912, /*allowed=*/true), cudaSuccess);
  EXPECT_EQ(LaunchWithShared(166913, /*allowed=*/true), cudaErrorInvalidValue);
}

TEST(EmulatedCudaTest, CopiesOfTheWrongKindAreRefused) {
  const DeviceFloats numbers(2, 2.0F);
  float host[3] = {};
  EXPECT_EQ(cudaMemcpy(host, numbers.data(), 8, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, numbers.data(), 12, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, numbers.data(), 8, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host[1], 2);
}

}  // namespace
}  // namespace emulated_cuda
