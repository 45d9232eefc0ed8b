// Attention's forward pass by a fake cuDNN on the emulated GPU: when it is used, and when not.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "engine/backend/kernels.h"
#include "tests/engine/backend/kernels_testing.h"
#include "tests/engine/backend/test_device.h"

namespace dsat::engine {
namespace {

enum Spoiled { kNothing, kLse, kOut, kExecute };

// The library, which stays open, so that the backend finds it by its name.
template <typename Function>
Function* FromCudnn(const char* name) {
  static void* const library = dlopen(DSAT_EMULATED_CUDNN, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
void Spoil(Spoiled what) {
  FromCudnn<void(int)>("FakeCudnnSpoil")(what);
}
int NumRuns() {
  return FromCudnn<int()>("FakeCudnnNumRuns")();
}

struct Result {
  Doubles out, lse;
  int num_runs = 0;  // The runs of cuDNN.
};

Result Attend(Kernels& kernels, const AttentionShape& s, DType dtype) {
  const int before = NumRuns();
  TestTensor qkv = Random(3).Normal(dtype, s.B * s.T * s.QkvChannels());
  TestTensor out = TestTensor::Poisoned(dtype, s.B * s.T * s.C);
  TestTensor lse = TestTensor::Poisoned(DType::kF32, s.B * s.H * s.T);
  TestTensor scratch = TestTensor::Poisoned(DType::kF32, kernels.AttentionScratchBytes(s) / 4);
  kernels.Run(op::AttentionForward{out.get(), lse.get(), qkv.get(), scratch.get(), s});
  return {out.Values(), lse.Values(), NumRuns() - before};
}

std::unique_ptr<Kernels> MakeGpuKernels() {
  return MakeRoundTripKernels(MakeTestDevice("emulated-cuda"));
}

// By our own kernel.
Result AttendOwn(const AttentionShape& s, DType dtype) {
  Spoil(kExecute);  // Is logged.
  Result own = Attend(*MakeGpuKernels(), s, dtype);
  Spoil(kNothing);
  return own;
}

TEST(CudnnAttentionTest, IsUsedFromTheFirstCallOnIfItAgreesWithOurKernel) {
  for (const AttentionShape& s : {AttentionShape{.B = 2, .T = 20, .C = 64, .H = 4, .G = 2},
                                  AttentionShape{.B = 1, .T = 33, .C = 128, .H = 1}}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const Result own = AttendOwn(s, dtype);
      const auto kernels = MakeGpuKernels();
      for (const int num_runs : {2, 1}) {  // One is compared.
        const Result result = Attend(*kernels, s, dtype);
        EXPECT_EQ(result.num_runs, num_runs);
        EXPECT_THAT(result.out, testing::Pointwise(testing::DoubleNear(0.03), own.out));
        EXPECT_THAT(result.lse, testing::Pointwise(testing::DoubleNear(1e-3), own.lse));
      }
    }
    EXPECT_EQ(Attend(*MakeGpuKernels(), s, DType::kF32).num_runs, 0);
  }
}

TEST(CudnnAttentionTest, GivesWayToOurKernelWithOneLineIfItDiffersOrFails) {
  const AttentionShape s = {.B = 2, .T = 20, .C = 64, .H = 4};
  const Result own = AttendOwn(s, DType::kBF16);
  for (const auto& [spoiled, why] : {std::pair(kLse, "B 2, T 20, 4 heads of 16 channels differ"),
                                     std::pair(kOut, "channels differ from those of our own"),
                                     std::pair(kExecute, "cudnnBackendExecute: failed")}) {
    Spoil(spoiled);
    const auto kernels = MakeGpuKernels();
    for (const int num_runs : {1, 0}) {
      testing::internal::CaptureStderr();
      const Result result = Attend(*kernels, s, DType::kBF16);
      const std::string log = testing::internal::GetCapturedStderr();
      EXPECT_EQ(result.num_runs, num_runs);
      EXPECT_EQ(result.out, own.out);
      EXPECT_EQ(result.lse, own.lse);
      EXPECT_THAT(log, num_runs == 1 ? testing::HasSubstr(why) : testing::HasSubstr(""));
      EXPECT_EQ(std::ranges::count(log, '\n'), num_runs);
    }
  }
}

}  // namespace
}  // namespace dsat::engine
