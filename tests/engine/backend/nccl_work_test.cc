// Collectives of NCCL on the emulated GPU: they are asked for like kernels, and those that never
// end are errors where a rank waits for them.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "engine/backend/stream.h"
#include "tests/base/error_code.h"
#include "tests/engine/backend/emulated_cuda/gpu.h"
#include "tests/engine/backend/test_device.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

using emulated_cuda::Gpu;

// A rank's buffer of ones over NCCL.
class SummedOnes {
 public:
  explicit SummedOnes(ProcessGroup& group) : device_(MakeTestDevice("emulated-nccl"), group) {
    device_.memory().view().kernels.Run(op::Fill{{buffer_.data, 2 * kRowElems, DType::kF32}, 1});
  }
  void Sum() { device_.group().AllReduce(buffer_, DType::kF32, kRowElems); }
  std::vector<float> Download() {
    std::vector<float> numbers(2 * kRowElems);
    device_.memory().view().kernels.stream().Download(numbers.data(), buffer_.data, buffer_.bytes);
    return numbers;
  }

 private:
  static constexpr int64_t kRowElems = 32;
  TestDevice device_;
  CommBuffer buffer_ = device_.group().Allocate(2 * kRowElems * 4);
};

TEST(NcclWorkTest, ACollectiveIsAskedForLikeAKernel) {
  RunRanks(2, [](ProcessGroup& group) {
    SummedOnes ones(group);
    group.Barrier();
    const int64_t before = Gpu::Get().ticks();
    group.Barrier();
    ones.Sum();
    group.Barrier();
    EXPECT_EQ(Gpu::Get().ticks(), before);
    group.Barrier();
    EXPECT_THAT(ones.Download(), testing::Each(2.0F));
  });
}

TEST(NcclWorkTest, WorkThatTheGpuNeverEndsEndsTheWaitAndAllThatComesAfter) {
  void* library = dlopen(DSAT_EMULATED_NCCL, RTLD_NOW | RTLD_LOCAL);
  const auto hang = reinterpret_cast<void (*)()>(dlsym(library, "FakeNcclHang"));
  std::atomic<int> num_timeouts = 0;
  const auto train = [&](ProcessGroup& group) {
    SummedOnes ones(group);
    ones.Sum();
    ones.Download();
    if (group.rank() == 0) hang();
    group.Barrier();
    ones.Sum();
    const Error error = ErrorOf([&] { ones.Download(); });
    // The other rank may see first that this one has given up.
    num_timeouts += error.code() == ErrorCode::kDeadlineExceeded ? 1 : 0;
    EXPECT_TRUE(error.code() == ErrorCode::kDeadlineExceeded ||
                error.code() == ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), testing::HasSubstr("all_reduce(buffer 0, f32, rows of 32): "));
    EXPECT_STREQ(ErrorOf([&] { ones.Download(); }).what(), error.what());
    EXPECT_EQ(ErrorOf([&] { ones.Sum(); }).code(), ErrorCode::kUnavailable);
  };
  RunRanks(2, train, kShortTestTimeout);
  EXPECT_GT(num_timeouts, 0);
}

}  // namespace
}  // namespace dsat::engine
