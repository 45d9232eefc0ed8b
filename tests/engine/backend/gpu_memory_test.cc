// A GPU whose memory runs out: the emulated one, which has as much as it is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/error.h"
#include "engine/core/arena.h"
#include "engine/runtime/predict.h"
#include "tests/engine/backend/emulated_cuda/memory.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The GPU has so much beside what is in use; all of it again at the end.
class FreeMemory {
 public:
  explicit FreeMemory(size_t bytes) : limit_(Gpu().limit()) {
    Gpu().set_limit(Gpu().used() + bytes);
  }
  FreeMemory(const FreeMemory&) = delete;
  FreeMemory& operator=(const FreeMemory&) = delete;
  ~FreeMemory() { Gpu().set_limit(limit_); }

 private:
  static emulated_cuda::Memory& Gpu() { return emulated_cuda::Memory::Get(); }
  const size_t limit_;
};

std::string ExhaustedBy(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(GpuMemoryTest, AnArenaThatTheGpuRefusesABlockSaysHowMuchIsInUse) {
  const auto device = MakeTestDevice("emulated-cuda");
  const FreeMemory free(16 << 20);
  Arena arena("device memory", Arena::Kind::kReal, 0, &device->memory());
  const Buffer some = arena.Allocate(8 << 20, "parameters");
  EXPECT_THAT(ExhaustedBy([&] { arena.Allocate(16 << 20, "optimizer state"); }),
              HasSubstr("no 16.0 MiB for optimizer state: 8.0 MiB in use"));
  EXPECT_TRUE(arena.Allocate(4 << 20, "a smaller one"));
}

TEST(GpuMemoryTest, AWorkspaceThatTheGpuRefusesIsAnOutcomeToo) {
  const auto device = MakeTestDevice("emulated-cuda");
  const auto kernels = device->MakeKernels();
  Arena arena("device memory", Arena::Kind::kReal, 0, &device->memory());
  const Buffer x = arena.Allocate(DType::kF32, 64 * 64, "a matrix");
  const Tensor matrix = x.AsTensor(DType::kF32);
  const FreeMemory free(1 << 20);
  EXPECT_THAT(
      ExhaustedBy([&] {
        kernels->Run(op::Matmul{.M = 8, .N = 8, .K = 8, .a = matrix, .b = matrix, .c = matrix});
      }),
      AllOf(HasSubstr("GPU memory: no 33554432 bytes for cuBLASLt"), HasSubstr("1048576")));
}

TEST(GpuMemoryTest, ATrainingThatDoesNotFitThrowsWhatATrialCallsInfeasible) {
  const Model model = TinyMlp();
  const auto data = SyntheticFor(model);
  RunRanks(1, [&](ProcessGroup& group) {
    TestDevice device(MakeTestDevice("emulated-cuda"), group);
    const FreeMemory free(16 << 10);
    EXPECT_THAT(ExhaustedBy([&] {
                  Engine engine(device.For(model, data.get(), kSeqLen), TinyConfig(0, 1, 1), 7);
                  engine.TrainBatch();
                }),
                HasSubstr("device memory"));
  });
}

// Where buffers of several lifetimes meet: gradients beside activations, gathered parameters, what
// is computed again.
TEST(GpuMemoryTest, WhatTheDriverGivesIsWhatIsPredicted) {
  for (const int stage : {0, 2, 3}) {
    for (const int bits : {0, 1, 2, 3, 4}) {
      SCOPED_TRACE(fmt::format("stage {} bits {}", stage, bits));
      DsConfig config = TinyConfig(stage, 1, (bits & 1) != 0 ? 3 : 1);
      config.bf16 = (bits & 2) != 0;
      config.activation.checkpoint_interval = (bits & 4) != 0 ? 1 : 0;
      const Model model = TinyGpt2();
      const auto data = SyntheticFor(model);
      const int64_t predicted =
          Predict(model, config, kSeqLen, 0, 1, 1, {}, DeviceKind::kCuda).run_peak_bytes;
      RunRanks(1, [&](ProcessGroup& group) {
        const auto used = [before = emulated_cuda::Memory::Get().used()] {
          return static_cast<int64_t>(emulated_cuda::Memory::Get().used() - before);
        };
        TestDevice device(MakeTestDevice("emulated-cuda"), group);
        const Resources resources = device.For(model, data.get(), kSeqLen);
        Engine engine(resources, config, 7);
        for (int step = 0; step < 3; ++step) {
          engine.TrainBatch();
          EXPECT_EQ(used(), predicted) << step;
          EXPECT_EQ(resources.memory.device.peak_bytes(), predicted);
        }
      });
    }
  }
}

}  // namespace
}  // namespace dsat::engine
